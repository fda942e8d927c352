"""One request through a router and real workers is one trace, pulled KV and left callers included."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from common.store.client import connect
from common.tracing import spans
from services.encoder.settings import EncoderSettings
from services.router.service import RouterProcess
from services.router.settings import RouterSettings
from tests.checkpoints import CheckpointCache
from tests.contract.router_bench import eventually, png
from tests.fault.rig import open_encoder
from tests.workers import running_pair
from triptych.channel import open_channel
from triptych.v1.router_pb2 import GenerateRequest, RawPrompt
from triptych.v1.router_pb2_grpc import RouterServiceStub
from triptych.v1.types_pb2 import SamplingParams

TRACE = "0af7651916cd43dd8448eb211c80319c"
LONG = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0)
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
PICTURE = "data:image/png;base64," + base64.b64encode(png()).decode()
# Every span with the one above it.
TREE = {
    ("request", ""),
    ("admission", "request"),
    ("queue", "request"),
    ("attempt", "request"),
    ("encode", "attempt"),
    ("encode call", "encode"),
    ("encode picture", "encode call"),
    ("replica", "encode picture"),
    ("preprocess", "replica"),
    ("batch wait", "replica"),
    ("forward", "replica"),
    ("prefill", "attempt"),
    ("prefill chunk", "prefill"),
    ("kv push", "prefill"),
    ("kv receive", "kv push"),
    ("decode", "attempt"),
}


class Collected:
    """What a collector would get of all services in this process."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def ended(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def tree(self) -> set[tuple[str, str]]:
        """Of the caller's trace: names with the names of their parents."""
        mine = [span for span in self._exporter.get_finished_spans() if f"{span.context.trace_id:032x}" == TRACE]
        names = {span.context.span_id: span.name for span in mine}
        return {(span.name, names.get(span.parent.span_id, "") if span.parent else "?") for span in mine}

    def everything(self) -> str:
        return "".join(span.to_json() for span in self._exporter.get_finished_spans())

    def clear(self) -> None:
        self._exporter.clear()


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Collected:
    """The process's one provider is left alone."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_TRACER", provider.get_tracer("test"))
    return Collected(exporter)


@pytest.fixture
async def http(checkpoints: CheckpointCache, valkey_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A router over an encoder, a prefill and a decode worker."""
    common: dict[str, Any] = {"model": checkpoints.get("qwen2_vl"), "redis_url": valkey_url, "drain_grace_s": 0.5}
    async with AsyncExitStack() as stack:
        redis = connect(valkey_url)
        stack.push_async_callback(redis.aclose)
        await open_encoder(stack, redis, EncoderSettings.model_validate(common))
        await stack.enter_async_context(
            running_pair(common["model"], valkey_url, {"step_tokens": 16, "pull": "always"})
        )
        router = RouterProcess(RouterSettings.model_validate({**common, "http_port": 0}))
        stack.push_async_callback(router.stop)
        await router.start()
        url = f"http://127.0.0.1:{router.http_port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        http.headers["x-grpc-port"] = str(router.port)
        while (await http.get("/readyz")).status_code != 200:
            pass
        yield http


def body(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": {"url": PICTURE}}, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "ignore_eos": True, **fields}


async def test_a_request_is_one_trace_across_all_services(http: httpx.AsyncClient, collected: Collected) -> None:
    answer = await http.post("/v1/chat/completions", json=body("a secret word"), headers=CALLER)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]["triptych"]
    await eventually(lambda: len(collected.ended("request")) == len(collected.ended("decode")) == 1)
    assert collected.tree() == TREE
    names = ("request", "kv push", "kv receive", "decode")
    (request,), (push,), (receive,), (decode,) = (collected.ended(name) for name in names)
    said = about(request)
    assert (said["prompt_tokens"], said["images"], said["outcome"]) == (usage["prompt_tokens"], 1, "length")
    assert about(push)["bytes"] == usage["kv_transfer_bytes"] > 0
    assert {name: about(push)[name] for name in ("bytes", "blocks", "path")} == about(receive)
    assert [event.name for event in decode.events] == ["first token"] and about(decode)["tokens"] == 4
    chunks = [about(chunk)["tokens"] for chunk in collected.ended("prefill chunk")]
    assert len(chunks) > 1 and sum(chunks) == usage["prompt_tokens"]
    assert "secret" not in collected.everything()


async def test_what_the_next_turn_takes_from_decode_is_in_its_trace(
    http: httpx.AsyncClient, collected: Collected
) -> None:
    async with open_channel(f"127.0.0.1:{http.headers['x-grpc-port']}") as channel:
        stub, prompt = RouterServiceStub(channel), list(range(40, 80))
        for _ in range(2):
            collected.clear()
            request = GenerateRequest(prompt=RawPrompt(token_ids=prompt), sampling=LONG)
            async for event in stub.Generate(request, metadata=tuple(CALLER.items())):
                prompt += [token.token_id for token in event.delta.tokens]
    await eventually(lambda: len(collected.ended("prefill")) == 1)
    assert {("request", ""), ("kv pull", "prefill")} <= collected.tree(), "it is the caller's trace"
    (pull,) = collected.ended("kv pull")
    said = about(pull)
    assert said["direction"] == "decode_to_prefill" and said["path"] in ("grpc", "shared_memory")
    assert said["blocks"] == 2 and said["bytes"] > 0


async def test_a_caller_who_leaves_ends_every_span(http: httpx.AsyncClient, collected: Collected) -> None:
    asked = body("a", max_tokens=500, stream=True)
    async with http.stream("POST", "/v1/chat/completions", json=asked, headers=CALLER) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                break
    await eventually(lambda: all(collected.ended(name) for name in ("request", "attempt", "decode")))
    (request,) = collected.ended("request")
    assert (request.status.status_code, request.status.description) == (StatusCode.ERROR, "cancelled")
