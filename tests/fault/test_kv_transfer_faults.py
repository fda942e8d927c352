"""Transfers between real prefill and decode workers that go wrong: tokens stay exact, nothing stays behind."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.kv.links import GrpcLinks
from common.kv.staging import KvTransport
from common.worker.parts import load_parts
from common.worker.process import WorkerProcess
from common.worker.stage import Site, Stages
from services.decode import __main__ as decode_main
from services.decode.settings import DecodeSettings
from services.prefill.delivery import PushDeliveries
from services.prefill.settings import PrefillSettings
from services.prefill.stage import PrefillStage
from tests.checkpoints import build_checkpoint
from tests.integration.test_hand_over import greedy, reserve, text_prompt
from tests.kv_links import Fault, FaultName, FaultyLinks
from tests.reference import Reference
from tests.workers import Pair, running
from triptych.errors import FailedPreconditionError
from triptych.v1 import types_pb2, worker_pb2

BLOCK = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint("qwen2_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@asynccontextmanager
async def faulty_pair(
    model: Path, redis_url: str, mode: KvTransport, *faults: Fault, blocks: int = 64
) -> AsyncIterator[tuple[Pair, FaultyLinks]]:
    """Two workers whose KV goes through `FaultyLinks`; prompts are computed a block at a time.

    A chunk is one block of one layer, however much waits to be sent, so the n-th chunk always exists.
    """
    common = {"model": model, "redis_url": redis_url, "blocks": blocks, "drain_grace_s": 1.0, "kv_transport": mode}
    settings = PrefillSettings.model_validate({**common, "step_tokens": BLOCK, "pull": "always"})
    made: list[FaultyLinks] = []

    def stages(site: Site) -> Stages:
        made.append(FaultyLinks(GrpcLinks(site.channels), *faults))
        deliveries = PushDeliveries(site.parts, site.channels, made[0], chunk_bytes=1)
        return {worker_pb2.WORKER_ROLE_PREFILL: PrefillStage(site, settings, deliveries, serves_kv=True, links=made[0])}

    prefill = WorkerProcess(lambda: load_parts(settings, step_tokens=BLOCK, step_sequences=0), stages)
    async with running([prefill, decode_main.build(DecodeSettings.model_validate(common))]) as channels:
        pair = Pair(model, redis_url, *channels)
        yield pair, made[0]
        assert await pair.idle(), "blocks or requests were left behind"


def prompt_in_own_scope(pair: Pair, reference: Reference, length: int) -> types_pb2.Prompt:
    """A prompt that shares no block with another call's."""
    prompt = pair.prompt(text_prompt(reference, length))
    prompt.cache_scope = secrets.token_hex(32)
    return prompt


NAMES: list[FaultName] = ["drop", "duplicate", "corrupt", "fail", "delay", "lose_ack"]


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_tokens_are_exact_after_each_fault(
    model: Path, valkey_url: str, reference: Reference, mode: KvTransport
) -> None:
    """F15 and E13: chunk 2 is hit in every way; what decode computes with is what prefill computed."""
    async with faulty_pair(model, valkey_url, mode) as (pair, links):
        clean = await pair.ask(prompt_in_own_scope(pair, reference, 4 * BLOCK + 5), greedy(8))
        for name in NAMES:
            fault = Fault(name, nth=2)
            links.faults, links.chunks = [fault], 0
            answer = await pair.ask(prompt_in_own_scope(pair, reference, 4 * BLOCK + 5), greedy(8))
            assert answer.token_ids == clean.token_ids, name
            assert fault.hits == 1, name


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_tokens_are_exact_after_each_fault_of_a_pull(
    model: Path, valkey_url: str, reference: Reference, mode: KvTransport
) -> None:
    """The second turn's prompt is pulled from decode, and its first chunk is hit in every way."""
    async with faulty_pair(model, valkey_url, mode) as (pair, links):
        first = prompt_in_own_scope(pair, reference, 20)
        answer = await pair.ask(first, greedy(40))
        turn = [*first.token_ids, *answer.token_ids, *text_prompt(reference, 9)]
        clean = await pair.ask(pair.prompt(turn), greedy(8))
        for name in NAMES:
            again = prompt_in_own_scope(pair, reference, 20)
            await pair.ask(again, greedy(40))
            second = pair.prompt(turn)
            second.cache_scope = again.cache_scope
            fault = Fault(name)
            links.faults, links.chunks = [fault], 0
            answer = await pair.ask(second, greedy(8))
            assert answer.token_ids == clean.token_ids, name
            assert answer.account is not None and answer.account.pulled_tokens > 0, name
            assert fault.hits == 1, name


async def test_a_pull_that_stays_damaged_is_computed_instead(
    model: Path, valkey_url: str, reference: Reference
) -> None:
    """E13: KV that is not what the peer has is never used."""
    async with faulty_pair(model, valkey_url, "auto") as (pair, links):
        first = prompt_in_own_scope(pair, reference, 20)
        answer = await pair.ask(first, greedy(40))
        second = pair.prompt([*first.token_ids, *answer.token_ids, *text_prompt(reference, 9)])
        clean = await pair.ask(second, greedy(8))
        second.cache_scope = first.cache_scope
        damaged = Fault("corrupt", times=10_000, way="pull")
        links.faults = [damaged]
        answer = await pair.ask(second, greedy(8))
        assert (answer.token_ids, damaged.hits > 0) == (clean.token_ids, True)
        assert answer.account is not None and answer.account.pulled_tokens == 0


async def test_kv_that_stays_damaged_fails_the_request(model: Path, valkey_url: str, reference: Reference) -> None:
    """E13: never tokens from KV that is not prefill's."""
    fault = Fault("corrupt", times=10_000)
    async with faulty_pair(model, valkey_url, "auto", fault) as (pair, _):
        with pytest.raises(FailedPreconditionError, match="damaged"):
            await pair.ask(prompt_in_own_scope(pair, reference, 40), greedy(8))


@pytest.mark.parametrize("mode", ["grpc", "shm"])
async def test_late_chunk_of_an_aborted_request_does_not_touch_the_next_ones_blocks(
    model: Path, valkey_url: str, reference: Reference, mode: KvTransport
) -> None:
    """F08: a pool of 8 blocks; A holds 6 when it is given up, B needs 7."""
    late = Fault("pause", nth=2)
    async with faulty_pair(model, valkey_url, mode, late, blocks=8) as (pair, _):
        own = [prompt_in_own_scope(pair, reference, length) for length in (70, 60)]
        call, ticket = await reserve(pair, own[0])
        doomed = asyncio.create_task(pair.run_prefill(own[0], greedy(4), ticket))
        await late.reached.wait()
        call.cancel()
        for _ in range(500):
            if not (await pair.load("decode")).blocks_in_use:
                break
            await asyncio.sleep(0.01)
        next_call, next_ticket = await reserve(pair, own[1])
        late.resume.set()
        with pytest.raises(FailedPreconditionError):
            await doomed
        await pair.run_prefill(own[1], greedy(4), next_ticket)
        tokens = [(await next_call.read()).tokens.tokens[0].token_id for _ in range(4)]
        next_call.cancel()
        assert tokens == (await pair.ask(prompt_in_own_scope(pair, reference, 60), greedy(4))).token_ids


async def test_cancels_during_transfer_leave_nothing(model: Path, valkey_url: str, reference: Reference) -> None:
    """F05 and F06: decode is cancelled, or prefill, or both, five times each while KV is under way."""
    async with faulty_pair(model, valkey_url, "auto") as (pair, links):
        for index in range(15):
            pause = Fault("pause")
            links.faults, links.chunks = [pause], 0
            prompt = prompt_in_own_scope(pair, reference, 40)
            call, ticket = await reserve(pair, prompt)
            prefill = asyncio.create_task(pair.run_prefill(prompt, greedy(4), ticket))
            await pause.reached.wait()
            if index % 3 != 1:
                call.cancel()
            if index % 3 != 0:
                prefill.cancel()
            pause.resume.set()
            await asyncio.gather(prefill, return_exceptions=True)
            call.cancel()
            assert await pair.idle()
