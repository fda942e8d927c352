"""A router in this process with a fleet of fake workers and real Valkey."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from redis.asyncio import Redis
from transformers import AutoTokenizer

from common.families import load_family
from common.store.client import connect
from services.router.service import RouterProcess
from services.router.settings import RouterSettings
from tests.contract.fleet import Fleet
from triptych.channel import open_channel
from triptych.v1.router_pb2_grpc import RouterServiceStub

MODEL = Path(__file__).parents[2] / "models" / "triptych-demo"
TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
FAMILY = load_family(MODEL)


@dataclass
class Bench:
    """Everything a contract test of the router needs."""

    router: RouterProcess
    fleet: Fleet
    redis: Redis
    http: httpx.AsyncClient
    stub: Any

    @property
    def url(self) -> str:
        """Where HTTP is served."""
        return f"http://127.0.0.1:{self.router.http_port}"

    def say(self, text: str) -> None:
        """Let the fleet answer `text`."""
        self.fleet.script.answer = TOKENIZER.encode(text, add_special_tokens=False)

    async def chat(self, content: Any = "hello", **fields: Any) -> httpx.Response:
        """One chat completion over HTTP."""
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until `holds()`; the test's own timeout bounds it."""
    while not holds():  # noqa: ASYNC110 - what is waited for belongs to many tasks
        await asyncio.sleep(0.01)


@asynccontextmanager
async def open_bench(redis_url: str, workers: tuple[str, ...], **settings: Any) -> AsyncIterator[Bench]:
    """Workers first, then a router that sees them; afterwards nothing may be left over."""
    redis = connect(redis_url)
    await redis.flushall()
    fleet = Fleet(redis, FAMILY.preprocessing_fingerprint)
    for kind in workers:
        await fleet.add(kind)
    options = {"model": MODEL, "redis_url": redis_url, "http_port": 0, "drain_grace_s": 0, **settings}
    router = RouterProcess(RouterSettings(**options))
    await router.start()
    channel = open_channel(f"127.0.0.1:{router.port}")
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.http_port}", timeout=30) as http:
            await _see(http, workers)
            yield Bench(router, fleet, redis, http, RouterServiceStub(channel))
            await eventually(lambda: router.ledger.total == 0)
            router.ledger.validate()
    finally:
        await channel.close()
        await fleet.close()
        await router.stop()
        await redis.aclose()


async def _see(http: httpx.AsyncClient, workers: tuple[str, ...]) -> None:
    absent = {"encoder", "prefill", "decode"} - set(workers)
    while len((await http.get("/readyz")).json()["missing"]) != len(absent):
        pass


def png(width: int = 100, height: int = 60, color: str = "red") -> bytes:
    """A small picture."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), color).save(file, "PNG")
    return file.getvalue()


def text_of(answer: httpx.Response) -> str:
    """The text of an answer, whole or streamed."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    chunks = [chunk for chunk in events(answer) if chunk["choices"]]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def usage_of(answer: httpx.Response) -> dict[str, Any]:
    """The account of an answer, whole or streamed."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return dict(answer.json()["usage"])
    return dict(events(answer)[-1]["usage"])


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a streamed answer."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
