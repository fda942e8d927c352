"""The decode engine without a server: who is let in between two steps, and what a step that fails takes with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from common.worker.parts import load_parts
from services.decode.engine import DecodeEngine
from services.decode.job import Job
from services.decode.parking import Parking
from services.decode.settings import DecodeSettings
from tests.checkpoints import CheckpointCache
from tests.integration.test_hand_over import greedy
from triptych.errors import InternalError, ResourceExhaustedError
from triptych.v1 import decode_pb2, types_pb2

Build = Callable[[int], DecodeEngine]


@pytest.fixture
def build(checkpoints: CheckpointCache) -> Build:
    """An engine with a pool of so many blocks; one request may wait."""

    def built(blocks: int) -> DecodeEngine:
        given = {"model": checkpoints.get("qwen2_vl"), "blocks": blocks, "max_waiting": 1, "watermark": 0}
        settings = DecodeSettings.model_validate(given)
        parts = load_parts(settings, step_tokens=1, step_sequences=2)
        return DecodeEngine(parts, settings, ThreadPoolExecutor(1), computes_prompts=False)

    return built


def request(max_tokens: int) -> decode_pb2.DecodeRequest:
    """Three blocks for its prompt, and a fourth from the tenth token of the answer on."""
    return decode_pb2.DecodeRequest(prompt=types_pb2.Prompt(token_ids=[20] * 40), sampling=greedy(max_tokens))


async def test_a_place_that_has_become_free_is_given_to_whoever_comes_now(build: Build) -> None:
    engine = build(3)
    running, waiting = engine.submit(request(4)), engine.submit(request(4))
    with pytest.raises(ResourceExhaustedError):
        engine.submit(request(4))
    engine.release(running)
    last = engine.submit(request(4))
    assert (waiting.reservation is not None, last.reservation) == (True, None)
    assert engine.scheduler.num_waiting == 1


def deliver(engine: DecodeEngine, job: Job) -> None:
    """As the receiver does once all KV is there."""
    assert job.reservation
    engine.intake.reservations.deliver(job.reservation, time.monotonic())
    engine.deliver(job.reservation.id, types_pb2.GeneratedToken(token_id=20))


async def test_a_request_that_cannot_be_parked_fails_alone(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six blocks: when the older one needs its fourth, the newer one is to be parked, and nobody else steps."""

    def broken(*_: object) -> None:
        raise InternalError("no memory on the host")

    monkeypatch.setattr(Parking, "_copy_out", broken)
    engine = build(6)
    older, newer = engine.submit(request(12)), engine.submit(request(12))
    for job in (older, newer):
        deliver(engine, job)
    engine.start()
    with pytest.raises(InternalError, match="no memory"):
        _ = [event async for event in newer.events()]
    assert [event async for event in older.events()][-1] == "length"
    assert engine.scheduler.preemptions == 1
    engine.scheduler.validate()
    await engine.close()
