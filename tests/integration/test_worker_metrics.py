"""A worker of all three stages shows its metrics where its description says."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from services.router.figures.metrics import Metrics
from services.router.figures.prompt_metrics import PromptMetrics
from tests.checkpoints import CheckpointCache
from tests.workers import running_combined
from triptych.v1.worker_pb2 import GetInfoRequest, WorkerInfo
from triptych.v1.worker_pb2_grpc import WorkerServiceStub

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


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
    router = Metrics()
    PromptMetrics(router.registry, lambda: "")
    by_turnstile = {"triptych_router_queued_requests", "triptych_router_promised_tokens"}
    assert shown(text) | shown(router.render().decode()) | by_turnstile == documented()


def shown(page: str) -> set[str]:
    """Names of metrics; the client library adds the time at which each counter began."""
    names = set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    return {name for name in names if not name.endswith("_created")}


def documented() -> set[str]:
    """Names in the first column of the table of metrics."""
    table = OPERATIONS.read_text().split("| metric | process | meaning |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {f"triptych_{name}" for cell in cells for name in re.findall(r"`(\w+)", cell)}


async def test_metrics_can_be_off(checkpoints: CheckpointCache, valkey_url: str) -> None:
    info, _ = await describe(checkpoints, valkey_url, "off")
    assert info.metrics_address == ""
