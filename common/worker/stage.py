"""What a worker process is made of, a stage or several, and what each of them is given."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias

from common.kv.wire import layout_to_proto
from common.metrics.registry import Metrics
from common.rpc.channels import Channels
from common.rpc.server import RpcServer
from common.store.client import connect
from common.worker.parts import Parts
from triptych.v1 import worker_pb2

Role: TypeAlias = "worker_pb2.WorkerRole.ValueType"


class Stage(Protocol):
    """Prefill or decode: an engine and its servicers."""

    def register(self, server: RpcServer) -> None:
        """Add the stage's servicers."""

    def start(self) -> None:
        """Start the engine."""

    def load(self) -> worker_pb2.GetLoadResponse:
        """Requests, tokens and preemptions, now."""

    def describe(self, info: worker_pb2.WorkerInfo) -> None:
        """Complete the worker's description with what this stage holds."""

    def alive(self, stall_s: float) -> bool:
        """False when the engine has stopped or has been in one step for `stall_s` seconds."""

    async def close(self) -> None:
        """Stop the engine; running requests have ended or been cancelled."""


Stages = Mapping[Role, Stage]


class Site:
    """What a stage is given: the loaded parts, the ways out of the process, and who it is."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.redis = connect(parts.settings.redis_url)
        self.channels = Channels(parts.settings.client_tls)
        self.instance_id = secrets.token_hex(16)
        self.address = self.metrics_address = ""
        self.metrics = Metrics()
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    async def close(self) -> None:
        """Close the connections, after the running step."""
        await asyncio.to_thread(self.thread.shutdown)
        await self.channels.close()
        await self.redis.aclose()


def describe_language(info: worker_pb2.WorkerInfo, parts: Parts) -> None:
    """What stages with a KV pool say about it."""
    info.model_fingerprint = parts.model.fingerprint
    info.layout.CopyFrom(layout_to_proto(parts.cache.layout))
    info.num_blocks = parts.plan.blocks
