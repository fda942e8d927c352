"""What the HTTP interface refuses, and in which words."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.router_bench import Bench, eventually, open_bench, png
from tests.contract.test_openai_chat import events_of, image_part
from triptych.errors import InternalError, InvalidImageError, ResourceExhaustedError


@pytest.fixture
async def small(valkey_url: str) -> AsyncIterator[Bench]:
    """A router with tight limits."""
    limits = {"max_images": 2, "max_body_size": 60_000, "max_image_size": 20_000}
    async with open_bench(valkey_url, ("encoder", "prefill", "decode"), **limits) as bench:
        yield bench


def url_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


SCHEMA = "response_format.json_schema.schema"


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A format of which every keyword must be enforced."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": strict({"properties": {"a": {"not": {}}}})}, f"{SCHEMA}.properties.a"),
    ({"response_format": strict({"type": "objekt"})}, SCHEMA),
    (
        {"response_format": {"type": "grammar", "syntax": "regex", "definition": "(["}},
        "response_format.definition",
    ),
    ({"response_format": {"type": "grammar", "syntax": "lark", "definition": "x"}}, "response_format.definition"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"temperature": "1"}, "temperature"),
    ({"stream": "yes"}, "stream"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 100_000}, "max_tokens"),
    ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
    ({"temperature": -0.5}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"seed": -1}, "seed"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0]"),
]


async def test_bad_fields_are_named(bench: Bench) -> None:
    named = []
    for fields, _ in BAD_FIELDS:
        answer = await bench.chat(**fields)
        error = answer.json()["error"]
        named.append((fields, error["param"]))
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert named == BAD_FIELDS


async def test_a_message_names_the_field_that_the_client_wrote(bench: Bench) -> None:
    answer = await bench.chat(max_completion_tokens=100_000)
    message = answer.json()["error"]["message"]
    assert "and max_completion_tokens is 100000" in message


@pytest.mark.parametrize(
    "url",
    [
        "data:text/html;base64,PGI+",
        "data:image/png;base64,",
        "data:image/png;base64,@@@@",
        "data:image/png,abc",
        "data:image/png;base64," + base64.b64encode(png()[:-40]).decode(),
        "data:image/png;base64," + base64.b64encode(b"no picture").decode(),
        base64.b64encode(png()).decode(),
        "https://example.com/cat.png",
        "http://169.254.169.254/latest",
        "file:///etc/hostname",
        "triptych:ABC",
    ],
)
async def test_bad_picture_urls_are_named(bench: Bench, url: str) -> None:
    answer = await bench.chat([{"type": "text", "text": "x"}, url_part(url)])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[1].image_url.url")
    assert (await bench.chat([image_part(png())])).status_code == 200


@pytest.mark.parametrize(
    "head", ["data:image/png;base64,", "DATA:IMAGE/PNG;charset=x;BASE64,", "data:image/gif;base64,"]
)
async def test_data_urls_may_be_written_in_many_ways(bench: Bench, head: str) -> None:
    text = base64.b64encode(png()).decode()
    answers = [
        await bench.chat([url_part(head + form)]) for form in (text, text.rstrip("="), text[:9] + "\n" + text[9:])
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert len(bench.fleet.embeddings) == 1


@pytest.mark.parametrize("role", ["system", "assistant", "developer"])
async def test_other_roles_hold_no_pictures(bench: Bench, role: str) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": role, "content": [image_part(png())]}]
    answer = await bench.http.post("/v1/chat/completions", json={"messages": messages})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[1]")


async def test_too_many_pictures_are_counted_before_they_are_read(small: Bench) -> None:
    answer = await small.chat([url_part("data:image/png;base64,@")] * 3)
    assert "2 images, this one has 3" in answer.json()["error"]["message"]


async def test_malformed_json_is_a_client_error(bench: Bench) -> None:
    answer = await bench.http.post("/v1/chat/completions", content=b'{"messages": [')
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_large_bodies_are_refused(small: Bench) -> None:
    answer = await small.chat("x" * 70_000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


async def test_large_bodies_without_a_length_are_refused(small: Bench) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(70):
            yield b" " * 1000

    assert (await small.http.post("/v1/chat/completions", content=body())).status_code == 413


async def test_large_pictures_are_refused(small: Bench) -> None:
    answer = await small.chat([url_part("data:image/png;base64," + "A" * 40_000)])
    assert answer.status_code == 413


async def test_a_prompt_over_the_context_states_the_numbers(bench: Bench) -> None:
    answer = await bench.chat("word " * 6000)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "4096" in error["message"]


async def test_a_request_that_no_pool_can_hold_is_refused(bench: Bench) -> None:
    for worker in bench.fleet.workers["decode"]:
        worker.info.num_blocks = 2
        await worker.registration.announce()
    while (answer := await bench.chat(max_tokens=100)).status_code == 200:
        pass
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_unknown_paths_and_methods_have_the_same_form(bench: Bench) -> None:
    answers = [await bench.http.get("/v1/nothing"), await bench.http.get("/v1/chat/completions")]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [
        (404, "route"),
        (405, "route"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stages_error_before_the_first_token_has_its_status(bench: Bench, stream: bool) -> None:
    bench.fleet.script.prefill_errors = [ResourceExhaustedError("full", retry_after_s=2)]
    answer = await bench.chat(stream=stream)
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["error"]["code"]) == (
        429,
        "2",
        "overloaded",
    )


async def test_an_encoder_error_fails_the_request(bench: Bench) -> None:
    bench.fleet.script.encode_error = InvalidImageError("not this one")
    answer = await bench.chat([image_part(png())])
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "not this one")


async def test_a_failure_in_the_stream_is_one_event_before_the_end(bench: Bench) -> None:
    bench.say("one two three four")
    bench.fleet.script.pause_after = 2
    bench.fleet.script.error_after_tokens = InternalError("decode broke")
    events = events_of((await bench.chat(stream=True)).text)
    assert events[-1] == "[DONE]"
    assert [("error" in json.loads(event)) for event in events[:-1]] == [False, False, False, True]


async def test_answers_that_a_stop_cuts_off_say_so(bench: Bench) -> None:
    bench.say("one two three four")
    bench.fleet.script.pause_after = 2
    asking = [asyncio.create_task(bench.chat(stream=stream)) for stream in (False, True)]
    await eventually(lambda: bench.fleet.running == 2)
    await bench.router.stop()
    whole, streamed = [await each for each in asking]
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "unavailable")
    *_, error, end = events_of(streamed.text)
    assert (json.loads(error)["error"]["code"], end) == ("unavailable", "[DONE]")
