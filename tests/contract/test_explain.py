"""Why a prompt was not read from the cache: the router tells, over gRPC and HTTP, and `triptych explain` prints it."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.contract.router_bench import Bench, png
from triptych.cli.app import app
from triptych.v1.router_pb2 import ExplainRequest, Explanation
from triptych.v1.types_pb2 import DivergenceKind

RED = "data:image/png;base64," + base64.b64encode(png(color="red")).decode()
TEXT = "Two pictures, and a text long enough for a few blocks of the cache behind them. " * 3


def pictures(*urls: str) -> list[dict[str, Any]]:
    """A user's content: pictures, then the text."""
    shown: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*shown, {"type": "text", "text": TEXT}]


async def two_turns(bench: Bench, **fields: Any) -> dict[str, Any]:
    """A session whose second turn leaves out the first picture; the account of that turn."""
    bench.say("Fine.")
    blue = "data:image/png;base64," + base64.b64encode(png(color="blue")).decode()
    first = await bench.chat(pictures(RED, blue), session_id="talk", **fields)
    said = first.json()["choices"][0]["message"]["content"]
    messages = [
        {"role": "user", "content": pictures(blue)},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "and now?"},
    ]
    second = await bench.http.post("/v1/chat/completions", json={"messages": messages, "session_id": "talk", **fields})
    account: dict[str, Any] = second.json()["usage"]["triptych"]
    return account


async def explained(bench: Bench, **fields: Any) -> list[Explanation]:
    answer = await bench.stub.Explain(ExplainRequest(**fields))
    return list(answer.requests)


async def test_a_picture_left_out_is_named_with_place_loss_and_advice(bench: Bench) -> None:
    account = await two_turns(bench)
    found = account["first_divergence"]
    assert (found["kind"], found["message_index"], found["turn"]) == ("image_removed", 0, 2)
    # Both pictures have the same placeholders, so only their keys tell that they part at the first of them.
    assert 0 < found["token_position"] < 32
    assert found["lost_tokens"] > account["prompt_tokens"] // 2 and "pictures" in found["hint"]
    latest, first = await explained(bench, session_id="talk")
    assert latest.usage.first_divergence.kind == DivergenceKind.DIVERGENCE_KIND_IMAGE_REMOVED
    assert not first.usage.HasField("first_divergence")


async def test_a_session_that_is_only_continued_lost_nothing(bench: Bench) -> None:
    bench.say("Fine.")
    await bench.chat("hello " * 20, session_id="talk")
    said: list[dict[str, str]] = [{"role": "user", "content": "hello " * 20}, {"role": "assistant", "content": "Fine."}]
    body = {"messages": [*said, {"role": "user", "content": "go on"}], "session_id": "talk"}
    answer = await bench.http.post("/v1/chat/completions", json=body)
    found = answer.json()["usage"]["triptych"]["first_divergence"]
    # The scripted workers say that they read nothing, as if they had lost it.
    assert found["kind"] == "evicted" and found["message_index"] == 2


async def test_scopes_do_not_see_each_other(bench: Bench) -> None:
    await two_turns(bench, cache_salt="mine")
    assert await explained(bench) == [] and await explained(bench, cache_salt="theirs") == []
    assert len(await explained(bench, cache_salt="mine")) == 2
    account = await two_turns(bench, cache_salt="theirs")
    assert account["first_divergence"]["turn"] == 2, "the other scope's session of the same name is another one"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["explain", "--last", "1"], ("image removed at token", "message 0", "tokens lost")),
        (["top", "--once", "--every", "0.1"], ("2 finished", "KV prefix 0%", "prefill", "decode", "encoder", "ready")),
    ],
)
async def test_what_the_commands_print(bench: Bench, command: list[str], words: tuple[str, ...]) -> None:
    await two_turns(bench)
    arguments = [*command, "--address", f"127.0.0.1:{bench.router.port}"]
    printed = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert printed.exit_code == 0, printed.output
    text = " ".join(printed.output.split())
    assert all(word in text for word in words), printed.output
