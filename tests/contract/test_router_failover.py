"""What the router does when workers fail: elsewhere, bounded, and without a gap in the answer."""

from __future__ import annotations

import asyncio
import random

import pytest

from benchmarks.soak import Soak
from tests.contract.router_bench import Bench, events, eventually, open_bench, png, text_of, usage_of
from tests.contract.test_openai_chat import image_part
from triptych.errors import (
    FailedPreconditionError,
    ResourceExhaustedError,
    TriptychError,
    UnavailableError,
    WrongInstanceError,
)
from triptych.status import rpc_errors
from triptych.v1.router_pb2 import GenerateRequest
from triptych.v1.types_pb2 import ContentPart, Message

PICTURES = [image_part(png(color=color)) for color in ("red", "green", "blue", "white")]


@pytest.mark.parametrize("kind", ["encoder", "prefill", "decode"])
async def test_a_worker_that_goes_away_before_the_first_token_is_replaced(wide: Bench, kind: str) -> None:
    """J06: one that has no grace left, too."""
    wide.say("fine")
    gate = wide.fleet.script.encode_gate = asyncio.Event()
    asking = asyncio.create_task(wide.chat(PICTURES[:1]))
    await eventually(lambda: bool(wide.fleet.requests("prefill") and wide.fleet.requests("encoder")))
    (busy,) = (worker for worker in wide.fleet.workers[kind] if worker.requests)
    await busy.server.drain(0)
    gate.set()
    assert (await asking).json()["choices"][0]["message"]["content"] == "fine"


@pytest.mark.parametrize("stage", ["prefill_errors", "decode_errors"])
@pytest.mark.parametrize("error", [UnavailableError("gone"), WrongInstanceError("no"), FailedPreconditionError("old")])
async def test_an_unavailable_worker_is_replaced(wide: Bench, stage: str, error: TriptychError) -> None:
    wide.say("fine")
    setattr(wide.fleet.script, stage, [error])
    answer = await wide.chat()
    assert answer.json()["choices"][0]["message"]["content"] == "fine"
    assert [len(worker.requests) for worker in wide.fleet.workers["decode"]] == [1, 1]


async def test_the_only_worker_is_tried_again(bench: Bench) -> None:
    bench.fleet.script.prefill_errors = [UnavailableError("link broke")]
    assert (await bench.chat()).status_code == 200


async def test_attempts_are_bounded_and_the_client_is_told_when_to_come_back(bench: Bench) -> None:
    bench.fleet.script.decode_errors = [UnavailableError("10.1.2.3:5 is gone")] * 4
    answer = await bench.chat()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "10.1.2.3" not in answer.text
    assert len(bench.fleet.script.decode_errors) == 1
    text = (await bench.http.get("/metrics")).text
    assert 'retries_total{reason="unavailable"} 2.0' in text
    assert 'gave_up_total{reason="attempts"} 1.0' in text


async def test_pictures_without_their_only_encoder_are_to_come_again(bench: Bench) -> None:
    """K06: asked at once, before anybody has noticed, and while the registry still names it."""
    bench.say("fine")
    await bench.fleet.workers["encoder"][0].die()
    answer = await bench.chat(PICTURES)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    await bench.fleet.add("encoder")
    while (answer := await bench.chat(PICTURES)).status_code == 503:
        pass
    assert text_of(answer) == "fine"


async def test_a_stream_that_ends_without_a_finish_is_a_failure(bench: Bench) -> None:
    """H14, H17: neither an empty success nor a silent end."""
    bench.say("one two three four five six")
    bench.fleet.script.pause_after, bench.fleet.script.end_after_tokens = 1, True
    whole, streamed = await bench.chat(), await bench.chat(stream=True)
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "unavailable")
    assert [chunk["error"]["code"] for chunk in events(streamed) if "error" in chunk] == ["unavailable"]
    asked = GenerateRequest(messages=[Message(role="user", content=[ContentPart(text="hello")])])
    with pytest.raises(UnavailableError), rpc_errors():
        async for _ in bench.stub.Generate(asked):
            pass


async def test_other_failures_are_not_repeated(wide: Bench) -> None:
    wide.fleet.script.decode_errors = [ResourceExhaustedError("full")]
    assert (await wide.chat()).status_code == 429
    assert len(wide.fleet.requests("decode")) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_goes_on_elsewhere_without_a_gap_or_a_repetition(wide: Bench, stream: bool) -> None:
    wide.say("one two three")
    wide.fleet.script.pause_after = 2
    wide.fleet.script.error_after_tokens = UnavailableError("gone")
    answer = await wide.chat(stream=stream, stream_options={"include_usage": True})
    assert text_of(answer) == "one two three"
    first, second = sorted(wide.fleet.requests("decode"), key=lambda request: request.prompt.generated)
    assert (second.prompt.generated, len(second.prompt.token_ids) - len(first.prompt.token_ids)) == (2, 2)
    usage = usage_of(answer)
    assert usage["prompt_tokens"] == len(first.prompt.token_ids)
    assert usage["completion_tokens"] == len(wide.fleet.script.answer)


async def test_an_answer_that_a_stop_string_ends_is_an_answer(wide: Bench) -> None:
    wide.say("one two three four")
    wide.fleet.script.pause_after = 2
    wide.fleet.script.error_after_tokens = UnavailableError("gone")
    assert text_of(await wide.chat(stop=[" four"])) == "one two three"
    assert "triptych_router_failovers_total 1.0" in (await wide.http.get("/metrics")).text


async def test_each_attempt_has_a_name_of_its_own(wide: Bench) -> None:
    wide.fleet.script.decode_errors = [UnavailableError("gone")]
    assert (await wide.chat(PICTURES[:1])).status_code == 200
    first, second = (
        asked.request_id for asked in sorted(wide.fleet.requests("decode"), key=lambda asked: asked.request_id)
    )
    assert second == f"{first}.1"
    assert {asked.request_id for kind in ("encoder", "prefill") for asked in wide.fleet.requests(kind)} >= {second}


async def test_a_finish_that_was_lost_is_asked_for_elsewhere(wide: Bench) -> None:
    wide.say("one two three")
    wide.fleet.script.pause_after = len(wide.fleet.script.answer) - 1
    wide.fleet.script.error_after_tokens = UnavailableError("gone")
    assert text_of(await wide.chat()) == "one two three"


async def test_a_request_over_which_workers_die_is_quarantined(valkey_url: str) -> None:
    async with open_bench(valkey_url, ("encoder", "prefill", *["decode"] * 3)) as bench:
        bench.say("one two three")
        bench.fleet.script.pause_after = 1
        bench.fleet.script.die_after_tokens = True
        answer = await bench.chat("poison")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "request_quarantined")
        bench.fleet.script.die_after_tokens = False
        bench.fleet.script.resume.set()
        assert (await bench.chat("poison")).status_code == 422
        assert text_of(await bench.chat("harmless")) == "one two three"


class FleetTarget:
    """Scripted workers under a soak: killed ones are replaced, and nothing else is known of them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def ask(self, number: int) -> str:
        """One streamed answer, whatever was asked."""
        messages = [Message(role="user", content=[ContentPart(text=f"question {number}")])]
        with rpc_errors():
            call = self._bench.stub.Generate(GenerateRequest(messages=messages))
            return "".join([response.delta.text async for response in call])

    async def kill(self, rng: random.Random) -> None:
        """A prefill or decode worker dies with all its calls; another one comes."""
        kind = rng.choice(["prefill", "decode"])
        victim = rng.choice(self._bench.fleet.workers[kind])
        newcomer = await self._bench.fleet.add(kind)
        # The next one may be killed at once.
        cluster, info = self._bench.router.routing.cluster, newcomer.info
        await eventually(lambda: info in cluster.ready(info.role))
        await victim.die()
        self._bench.fleet.workers[kind].remove(victim)
        await victim.registration.close()

    async def idle(self) -> None:
        """Nobody works any more."""
        await eventually(lambda: self._bench.fleet.running == 0 and self._bench.router.ledger.total == 0)


async def test_a_soak_of_cancels_and_kills_gives_right_answers_and_leaves_nothing(wide: Bench) -> None:
    wide.say("one two three four five")
    target = FleetTarget(wide)
    report = await Soak(target, ["one two three four five"] * 10, random.Random(1)).run(300)
    assert report.ended.total() == 300
    assert set(report.ended) <= {"right", "cancelled"}
    assert report.ended["right"] > 200
