"""A worker of all three stages shows its metrics where its description says."""

from __future__ import annotations

import httpx

from tests.checkpoints import CheckpointCache
from tests.workers import running_combined
from triptych.v1.worker_pb2 import GetInfoRequest, WorkerInfo
from triptych.v1.worker_pb2_grpc import WorkerServiceStub


async def describe(checkpoints: CheckpointCache, redis_url: str, port: int | str) -> tuple[WorkerInfo, str]:
    """Of a worker that serves everything: its description and its page."""
    model = checkpoints.get("qwen2_vl")
    async with running_combined(model, redis_url, blocks=32, encode=True, metrics_port=port) as pair:
        stub = WorkerServiceStub(pair.channels["decode"])
        info = (await stub.GetInfo(GetInfoRequest())).info
        if not info.metrics_address:
            return info, ""
        async with httpx.AsyncClient() as http:
            return info, (await http.get(f"http://{info.metrics_address}/metrics")).text


async def test_every_stage_is_on_the_page(checkpoints: CheckpointCache, valkey_url: str) -> None:
    _, text = await describe(checkpoints, valkey_url, 0)
    for line in (
        'triptych_kv_blocks{state="free"} 32.0',
        'triptych_worker_requests{stage="prefill",state="waiting"} 0.0',
        'triptych_worker_pending_tokens{stage="encoder"} 0.0',
        'triptych_store_lookups_total{found="store",stage="prefill"} 0.0',
        'triptych_store_evictions_total{policy="refcount"} 0.0',
        "triptych_encoder_replicas 1.0",
    ):
        assert line in text.splitlines()


async def test_metrics_can_be_off(checkpoints: CheckpointCache, valkey_url: str) -> None:
    info, _ = await describe(checkpoints, valkey_url, "off")
    assert info.metrics_address == ""
