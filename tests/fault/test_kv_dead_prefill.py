"""A prefill worker that is killed while prompts are under way, next to a decode worker that goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.decode import __main__ as decode_main
from services.decode.settings import DecodeSettings
from tests.checkpoints import build_checkpoint
from tests.integration.test_hand_over import greedy, text_prompt
from tests.reference import Reference
from tests.said import said
from tests.workers import Pair, Picture, running
from triptych.channel import open_channel
from triptych.errors import UnavailableError
from triptych.status import rpc_errors
from triptych.v1 import decode_pb2, kv_pb2, types_pb2

Call = Any  # the stubs' own type says "object" for what is read
TOKENS = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint("qwen2_vl", tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def prefill_process(model: Path, redis_url: str) -> AsyncIterator[tuple[Process, str]]:
    """A prefill worker of its own and its address, once it serves."""
    command = [sys.executable, "-m", "services.prefill", "--model", str(model), "--redis-url", redis_url]
    process = await asyncio.create_subprocess_exec(*command, "--blocks", "64", stderr=asyncio.subprocess.PIPE)
    try:
        yield process, await said(process, r"listening on (\S+)")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def pair_of_processes(model: Path, redis_url: str) -> AsyncIterator[tuple[Pair, Process]]:
    settings = {"model": model, "redis_url": redis_url, "blocks": 128, "drain_grace_s": 1.0, "reservation_ttl_s": 3.0}
    decode = decode_main.build(DecodeSettings.model_validate(settings))
    async with (
        prefill_process(model, redis_url) as (process, address),
        open_channel(address) as prefill,
        running([decode]) as (channel,),
    ):
        yield Pair(model, redis_url, prefill, channel), process


async def reserve(pair: Pair, prompt: types_pb2.Prompt, max_tokens: int = 4) -> tuple[Call, kv_pb2.KvTicket]:
    """A decode call that waits for its prompt's KV."""
    call: Call = pair.decode.Decode(decode_pb2.DecodeRequest(prompt=prompt, sampling=greedy(max_tokens)))
    return call, (await call.read()).ticket


async def rest_of(call: Call) -> int:
    """How many more tokens a stream gives before it finishes."""
    count = 0
    while (event := await call.read()).WhichOneof("event") == "tokens":
        count += len(event.tokens.tokens)
    return count


async def is_healthy(pair: Pair) -> bool:
    health: Any = health_pb2_grpc.HealthStub(pair.channels["decode"])
    return bool((await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING)


async def decode_is_idle(pair: Pair) -> None:
    async with asyncio.timeout(60):
        while (await pair.load("decode")).blocks_in_use:  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.02)


async def waits_for_a_picture(pair: Pair) -> tuple[Call, asyncio.Task[Any]]:
    """A decode call and its prefill, whose signs of life keep the reservation."""
    prompt = pair.prompt([pair.family.image_token_id, 7], [Picture("f" * 64, 64, 64, {})])
    call, ticket = await reserve(pair, prompt)
    prefill = asyncio.create_task(pair.run_prefill(prompt, greedy(4), ticket, announce=False))
    async with asyncio.timeout(60):
        while not (await pair.load("prefill")).running_requests:  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.02)
    return call, prefill


async def test_streams_go_on_and_pending_ones_fail_when_prefill_is_killed(model: Path, valkey_url: str) -> None:
    """F03, and F05 for a prefill that never reports again: what waits there for a picture keeps no lease."""
    prompts = [text_prompt(Reference(model), 40 + n) for n in range(6)]
    async with pair_of_processes(model, valkey_url) as (pair, process):
        begun = [await reserve(pair, pair.prompt(each), TOKENS) for each in prompts[:2]]
        for each, (_, ticket) in zip(prompts, begun, strict=False):
            await pair.run_prefill(pair.prompt(each), greedy(TOKENS), ticket)
        waiting, hung = await waits_for_a_picture(pair)
        process.send_signal(signal.SIGSTOP)
        pending = [await reserve(pair, pair.prompt(each)) for each in prompts[2:]]
        calls = zip(prompts[2:], pending, strict=True)
        doomed = [asyncio.create_task(pair.run_prefill(pair.prompt(each), greedy(4), t)) for each, (_, t) in calls]
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="in time"), rpc_errors():
            await waiting.read()
        process.kill()
        errors = await asyncio.gather(*doomed, hung, return_exceptions=True)
        assert [type(error) for error in errors] == [UnavailableError] * 5
        assert await is_healthy(pair)
        assert [await rest_of(call) for call, _ in begun] == [TOKENS, TOKENS]
        for call, _ in pending:
            call.cancel()
        await decode_is_idle(pair)
