"""Settings that prefill and decode share."""

from __future__ import annotations

from typing import Annotated

from pydantic import ByteSize, Field

from common.kv.staging import KvTransport
from common.settings import Dtype, RegisteredSettings


class WorkerSettings(RegisteredSettings):
    """A process that holds the language model and a KV pool."""

    device: str = Field("cpu", description="torch device of weights and KV pool, for example cuda or cuda:1")
    dtype: Dtype = Field("float32", description="element type of weights and KV")
    threads: Annotated[int, Field(ge=1)] = Field(1, description="CPU threads; more than cores / workers collapses")
    block_size: Annotated[int, Field(ge=1, le=256)] = Field(16, description="tokens per KV block")
    blocks: Annotated[int, Field(ge=1)] | None = Field(None, description="KV blocks; unset: what memory allows")
    memory: ByteSize | None = Field(
        None, description="memory budget, for example 40GiB; unset: 90 % of the device's, 1GiB on CPU"
    )
    kv_transport: KvTransport = Field(
        "auto", description="how KV moves: grpc, shm (shared memory or an error), or auto: shm where it is possible"
    )
    engine_stall_s: Annotated[float, Field(gt=0)] = Field(
        120.0, description="seconds that one step may take before the liveness check fails"
    )
    max_waiting: Annotated[int, Field(ge=0)] = Field(256, description="requests that may wait for KV blocks")
    context_length: Annotated[int, Field(ge=1)] | None = Field(
        None, description="longest prompt plus answer in tokens; unset: the model's"
    )
