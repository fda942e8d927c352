"""Bytes on the wire, counted at sockets: pictures travel once, afterwards only their names do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image as Pillow

from tests.contract.router_bench import Bench, open_bench
from tests.contract.test_openai_chat import image_part
from tests.pictures import save
from tests.proxy import Proxy, running_proxy
from triptych import AsyncClient, Image, user
from triptych.digests import file_digest

COUNT = 20


def incompressible(seed: int) -> bytes:
    """About 77 KB: far more than all that a request needs beside its pictures."""
    values = np.random.default_rng(seed).integers(0, 256, (160, 160, 3), dtype=np.uint8)
    return save(Pillow.fromarray(values), "PNG")


FILES = [incompressible(seed) for seed in range(COUNT)]
LEAST = min(map(len, FILES))
TOTAL = sum(map(len, FILES))


@dataclass
class Wired:
    """A bench whose three doors are counted: gRPC and HTTP of the router, and the store behind it."""

    bench: Bench
    rpc: Proxy
    http: Proxy
    store: Proxy

    async def converse(self) -> None:
        """A conversation about all pictures, over a connection of its own."""
        async with AsyncClient(f"127.0.0.1:{self.rpc.port}") as client:
            pictures = [Image.from_bytes(data) for data in FILES]
            await client.generate([user(*pictures, "Which is the largest?")], max_tokens=2).answer()

    async def chat(self, parts: list[dict[str, Any]]) -> int:
        """The same through OpenAI's own client; how many embeddings were there."""
        url = f"http://127.0.0.1:{self.http.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": [*parts, {"type": "text", "text": "Which?"}]}]
            answer = await client.chat.completions.create(model="triptych-demo", messages=messages, max_tokens=2)
        assert answer.usage is not None
        hits: int = answer.usage.model_extra["triptych"]["embedding_hits"]  # type: ignore[index]
        return hits


@pytest.fixture
async def wired(valkey_url: str) -> AsyncIterator[Wired]:
    port = int(valkey_url.rsplit(":", 1)[1].partition("/")[0])
    async with (
        running_proxy(port) as store,
        open_bench(store.url, ("encoder", "prefill", "decode"), max_images=COUNT, recent_uploads=0) as bench,
        running_proxy(bench.router.port) as rpc,
        running_proxy(bench.router.http_port) as http,
    ):
        bench.say("That one.")
        yield Wired(bench, rpc, http, store)


async def test_a_second_conversation_over_the_same_pictures_sends_no_pixels(wired: Wired) -> None:
    await wired.converse()
    first = wired.rpc.sent_bytes
    await wired.converse()
    assert first > TOTAL
    assert wired.rpc.sent_bytes - first < LEAST
    assert len(wired.bench.fleet.embeddings) == COUNT


async def test_the_edge_passes_on_only_what_is_unknown(wired: Wired) -> None:
    parts = [image_part(data) for data in FILES]
    await wired.chat(parts)
    first = wired.store.sent_bytes
    assert await wired.chat(parts) == COUNT
    assert first > TOTAL
    assert wired.store.sent_bytes - first < LEAST


async def test_a_plain_openai_client_may_name_pictures_by_digest(wired: Wired) -> None:
    await wired.converse()
    parts = [{"type": "image_url", "image_url": {"url": f"triptych:{file_digest(data)}"}} for data in FILES]
    assert await wired.chat(parts) == COUNT
    assert wired.http.sent_bytes < LEAST
