"""Settings of the encoder: the front, Ray, and each replica."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import ByteSize, Field, model_validator
from pydantic_settings import SettingsConfigDict

from common.settings import Dtype, RegisteredSettings
from common.store.budget import Budget, Policy
from triptych.tls import Tls

PositiveInt = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]


class EncoderSettings(RegisteredSettings):
    """`python -m services.encoder`; environment prefix TRIPTYCH_ENCODER_."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_ENCODER_")

    device: str = Field("cpu", description="torch device inside a replica: cpu or cuda (the share Ray assigned)")
    dtype: Dtype = Field("float32", description="element type of weights and embeddings")
    threads: PositiveInt = Field(1, description="CPU threads of a replica's tower")
    decode_threads: PositiveInt = Field(2, description="pictures that a replica decodes at the same time")
    max_batch_tokens: PositiveInt = Field(4096, description="visual tokens that a replica encodes in one step")
    max_pending_tokens: PositiveInt = Field(1 << 20, description="visual tokens of accepted work, over all replicas")
    embedding_ttl_s: Seconds = Field(3600.0, description="life of an unused embedding in the store")
    embedding_policy: Policy = Field(
        "refcount", description="what a full store evicts: lru (the oldest) or refcount (never what a request needs)"
    )
    embedding_budget: ByteSize = Field(ByteSize(2**30), description="bytes of all embeddings in the store")
    lease_s: Seconds = Field(60.0, description="time for prefill to read an announced embedding under refcount")
    embedding_memory: ByteSize = Field(ByteSize(64 * 2**20), description="embeddings a replica keeps in memory")
    held_budget: ByteSize = Field(ByteSize(256 * 2**20), description="memory for what is handed over past the store")
    held_s: Seconds = Field(60.0, description="time for prefill to fetch what is handed over past the store")
    image_ttl_s: Seconds = Field(3600.0, description="life of unused uploaded bytes in the store")
    reservation_ttl_s: Seconds = Field(10.0, description="time after which the work of a dead replica is taken over")

    replicas: PositiveInt = Field(1, description="replicas at start, and the least")
    max_replicas: PositiveInt | None = Field(None, description="the most replicas; unset: no autoscaling")
    target_tokens: PositiveInt = Field(8192, description="pending visual tokens per replica that autoscaling aims at")
    upscale_delay_s: Seconds = Field(5.0, description="load must last this long before replicas are added")
    downscale_delay_s: Seconds = Field(120.0, description="idleness must last this long before replicas are removed")
    cpus_per_replica: Share = Field(1.0, description="CPUs that Ray counts for a replica")
    gpus_per_replica: Share = Field(0.0, description="share of a GPU for a replica, for example 0.25")
    max_ongoing_images: PositiveInt = Field(256, description="pictures that one replica holds, waiting ones included")
    health_period_s: Seconds = Field(5.0, description="seconds between two health checks of a replica")
    health_timeout_s: Seconds = Field(30.0, description="seconds after which a silent replica is replaced")
    replica_grace_s: Seconds = Field(10.0, description="seconds a removed replica may finish its work")

    ray_address: str | None = Field(None, description="Ray cluster to join; unset: one of its own")
    ray_directory: Path | None = Field(
        None, description="short path for an own cluster's sockets and logs; unset: temporary"
    )
    object_store: ByteSize = Field(ByteSize(80 * 2**20), description="Ray's object store; embeddings never use it")
    replica_logs: bool = Field(False, description="print what replicas log")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("max_replicas is less than replicas")
        return self

    @property
    def most_replicas(self) -> int:
        """Upper bound of the number of replicas."""
        return self.max_replicas or self.replicas

    def for_replica(self) -> ReplicaSettings:
        """The part that replicas are given."""
        return ReplicaSettings(
            model=str(self.model.resolve()),
            redis_url=self.redis_url,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            decode_threads=self.decode_threads,
            max_batch_tokens=self.max_batch_tokens,
            embedding_ttl_s=self.embedding_ttl_s,
            budget=Budget(self.embedding_policy, int(self.embedding_budget), self.lease_s),
            embedding_memory=int(self.embedding_memory),
            image_ttl_s=self.image_ttl_s,
            reservation_ttl_s=self.reservation_ttl_s,
            tls=self.client_tls,
            otlp_endpoint=self.otlp_endpoint,
            trace_ratio=self.trace_ratio,
        )


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica must know; fields as in `EncoderSettings`."""

    model: str
    redis_url: str
    device: str
    dtype: str
    threads: int
    decode_threads: int
    max_batch_tokens: int
    embedding_ttl_s: float
    budget: Budget
    embedding_memory: int
    image_ttl_s: float
    reservation_ttl_s: float
    tls: Tls | None
    otlp_endpoint: str | None
    trace_ratio: float
