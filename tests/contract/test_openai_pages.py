"""Pages for operators: health, readiness, metrics."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from common.images import DecodedImage, decode_image
from services.router.pictures import images
from tests.contract.router_bench import Bench, eventually, open_bench, png
from tests.contract.test_openai_chat import image_part


async def test_readiness_lists_what_is_missing(valkey_url: str) -> None:
    async with open_bench(valkey_url, ("prefill",)) as bench:
        answer = await bench.http.get("/readyz")
        assert answer.status_code == 503
        assert [sentence.split()[1] for sentence in answer.json()["missing"]] == ["encoder", "decode"]
        assert (await bench.http.get("/healthz")).status_code == 200


async def test_text_is_refused_by_the_name_of_the_missing_role(valkey_url: str) -> None:
    async with open_bench(valkey_url, ("prefill",)) as bench:
        answer = await bench.chat()
        assert (answer.status_code, "no decode worker" in answer.json()["error"]["message"]) == (503, True)


async def test_text_does_not_need_an_encoder(valkey_url: str) -> None:
    async with open_bench(valkey_url, ("prefill", "decode")) as bench:
        assert (await bench.chat()).status_code == 200
        assert "no encoder" in (await bench.chat([image_part(png())])).json()["error"]["message"]


async def test_unlike_layouts_are_no_pair(bench: Bench) -> None:
    worker = bench.fleet.workers["prefill"][0]
    worker.info.layout.block_size = 32
    await worker.registration.announce()
    while (await bench.http.get("/readyz")).status_code == 200:
        pass
    answer = await bench.chat()
    assert answer.json()["error"]["code"] == "failed_precondition"


async def test_ready_when_all_are_there(bench: Bench) -> None:
    assert (await bench.http.get("/readyz")).json() == {"ready": True, "missing": [], "degraded": []}


async def test_what_only_costs_time_is_shown_and_leaves_the_router_ready(bench: Bench) -> None:
    worker = bench.fleet.workers["prefill"][0]
    worker.info.degraded.append("the store is odd")
    await worker.registration.announce()
    while not (answer := await bench.http.get("/readyz")).json()["degraded"]:
        pass
    assert answer.status_code == 200
    assert answer.json()["degraded"] == [f"prefill {worker.info.address}: the store is odd"]


async def test_health_is_told_while_all_that_decodes_pictures_is_busy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L11."""
    begun, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> DecodedImage:
        begun.set()
        goes_on.wait(60)
        return decode_image(*arguments)

    monkeypatch.setattr(images, "decode_image", slow)
    sides = range(100, 108)
    asking = [asyncio.create_task(bench.chat([image_part(png(side))])) for side in sides]
    await eventually(begun.is_set)
    assert [(await bench.http.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    assert not any(each.done() for each in asking)
    goes_on.set()
    assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * len(sides)


async def test_metrics_count_answers_and_tokens(bench: Bench) -> None:
    bench.say("yes")
    await bench.chat([image_part(png())])
    await bench.chat(max_tokens=0)
    text = (await bench.http.get("/metrics")).text
    assert 'triptych_router_requests_total{status="ok"} 1.0' in text
    assert 'triptych_router_requests_total{status="invalid_argument"} 1.0' in text
    assert 'triptych_router_embeddings_total{outcome="miss"} 1.0' in text
    assert f'triptych_router_tokens_total{{kind="completion"}} {len(bench.fleet.script.answer)}.0' in text


async def test_metrics_do_not_grow_with_names(bench: Bench) -> None:
    """L13: paths, users, sessions, scopes, models, request ids, pictures."""
    counts = []
    for color in ("red", "green", "blue"):
        await bench.http.get(f"/v1/{color}", headers={"x-request-id": color})
        await bench.http.get(f"/v1/models/{color}")
        names = {"user": color, "cache_salt": color, "session_id": color}
        assert (await bench.chat([image_part(png(color=color))], **names)).status_code == 200
        assert (await bench.chat(model=color)).status_code == 404
        counts.append((await bench.http.get("/metrics")).text.count("\n"))
    assert counts[1:] == counts[:1] * 2
