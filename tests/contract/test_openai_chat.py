"""Chat completions: the shapes that OpenAI's own client and its users rely on."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import openai
import pytest

from tests.contract.router_bench import TOKENIZER, Bench, png
from triptych.digests import file_digest
from triptych.v1.router_pb2 import GenerateRequest
from triptych.v1.types_pb2 import ContentPart, Message

SAY = "The picture shows a red square."


def image_part(data: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def client_of(bench: Bench) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{bench.url}/v1", api_key="none", max_retries=0)


def events_of(text: str) -> list[str]:
    """Data of every event; fails when a line is no part of one."""
    lines = [line for line in text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


async def test_an_answer_has_text_reason_and_usage(bench: Bench) -> None:
    bench.say(SAY)
    answer = (await bench.chat()).json()
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (SAY, "stop")
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + len(bench.fleet.script.answer)


async def test_the_prompt_is_what_transformers_renders(bench: Bench) -> None:
    await bench.chat("What is this?", max_tokens=3)
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}]}]
    expected = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(bench.fleet.requests("decode")[0].prompt.token_ids) == expected


async def test_openai_client_reads_a_whole_answer(bench: Bench) -> None:
    bench.say(SAY)
    async with client_of(bench) as client:
        answer = await client.chat.completions.create(
            model="triptych-demo", messages=[{"role": "user", "content": "hi"}], max_tokens=50
        )
    assert answer.choices[0].message.content == SAY


async def test_openai_client_without_asyncio(bench: Bench) -> None:
    bench.say(SAY)

    def ask() -> str:
        with openai.OpenAI(base_url=f"{bench.url}/v1", api_key="none", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "hi"}]
            stream = client.chat.completions.create(model="triptych-demo", messages=messages, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask) == SAY


async def test_openai_client_reads_a_stream_with_a_picture(bench: Bench) -> None:
    bench.say(SAY)
    messages: Any = [{"role": "user", "content": [image_part(png()), {"type": "text", "text": "What?"}]}]
    async with client_of(bench) as client:
        stream = await client.chat.completions.create(
            model="triptych-demo", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == SAY
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == len(bench.fleet.script.answer)


async def test_openai_client_lists_models(bench: Bench) -> None:
    async with client_of(bench) as client:
        assert [model.id async for model in client.models.list()] == ["triptych-demo"]


async def test_openai_client_gets_typed_errors(bench: Bench) -> None:
    async with client_of(bench) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 0), ({"include_usage": False}, 0), (None, 0), ({"include_usage": True}, 1)],
)
async def test_usage_in_a_stream_only_when_asked_for(bench: Bench, options: Any, count: int) -> None:
    bench.say(SAY)
    events = events_of((await bench.chat(stream=True, stream_options=options)).text)
    assert events[-1] == "[DONE]"
    assert [("usage" in json.loads(event)) for event in events[:-1]].count(True) == count


async def test_stream_options_without_a_stream_are_ignored(bench: Bench) -> None:
    bench.say(SAY)
    answer = await bench.chat(stream_options={"include_usage": True})
    assert answer.json()["choices"][0]["message"]["content"] == SAY


async def test_stream_and_whole_answer_have_the_same_text_and_account(bench: Bench) -> None:
    bench.say(SAY)
    whole = (await bench.chat()).json()
    streamed = await bench.chat(stream=True, stream_options={"include_usage": True})
    chunks = [json.loads(event) for event in events_of(streamed.text)[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


async def test_stream_begins_with_the_role_and_ends_with_a_reason(bench: Bench) -> None:
    bench.say(SAY)
    chunks = [json.loads(event) for event in events_of((await bench.chat(stream=True)).text)[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]


async def test_a_picture_is_counted_and_named_once(bench: Bench) -> None:
    picture = png()
    answer = (await bench.chat([image_part(picture), {"type": "text", "text": "a"}, image_part(picture)])).json()
    usage = answer["usage"]["triptych"]
    assert (usage["images"], usage["unique_images"], usage["embedding_misses"]) == (2, 1, 1)
    assert len(bench.fleet.requests("encoder")[0].images) == 1


async def test_a_picture_is_found_again(bench: Bench) -> None:
    for _ in range(2):
        answer = (await bench.chat([image_part(png())])).json()
    assert answer["usage"]["triptych"]["embedding_hits"] == 1


async def test_a_picture_can_be_named_by_its_digest(bench: Bench) -> None:
    await bench.chat([image_part(png())])
    part = {"type": "image_url", "image_url": {"url": f"triptych:{file_digest(png())}"}}
    assert (await bench.chat([part])).json()["usage"]["triptych"]["images"] == 1


async def test_an_unknown_digest_is_listed(bench: Bench) -> None:
    part = {"type": "image_url", "image_url": {"url": f"triptych:{'0' * 64}"}}
    answer = await bench.chat([part])
    assert (answer.status_code, answer.json()["error"]["missing_digests"]) == (404, ["0" * 64])


async def test_pictures_stand_where_the_message_has_them(bench: Bench) -> None:
    red, blue = image_part(png(color="red")), image_part(png(color="blue"))
    await bench.chat([red, {"type": "text", "text": "x"}, blue])
    await bench.chat([blue, {"type": "text", "text": "x"}, red])
    first, second = (
        [image.embedding_key for image in request.prompt.images] for request in bench.fleet.requests("decode")
    )
    assert first == second[::-1] and len(set(first)) == 2


async def test_every_placeholder_lies_in_a_span(bench: Bench) -> None:
    await bench.chat([{"type": "text", "text": "<|image_pad|> typed"}, image_part(png())])
    prompt = bench.fleet.requests("prefill")[0].prompt
    (span,) = prompt.images
    places = [index for index, token in enumerate(prompt.token_ids) if token == 1022]
    assert places == list(range(span.offset, span.offset + span.length))


async def test_a_tool_message_may_hold_a_picture(bench: Bench) -> None:
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": [image_part(png())], "tool_call_id": "1"},
    ]
    answer = await bench.http.post("/v1/chat/completions", json={"messages": messages})
    assert answer.json()["usage"]["triptych"]["images"] == 1


async def test_log_probabilities_join_to_the_text(bench: Bench) -> None:
    bench.say("Grün: 12 €")
    choice = (await bench.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    joined = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert joined.decode() == choice["message"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(bench.fleet.script.answer)


async def test_a_stop_string_across_tokens_ends_the_answer(bench: Bench) -> None:
    bench.say("alpha beta gamma delta")
    choice = (await bench.chat(stop=["beta gamma"])).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("alpha ", "stop")


async def test_streamed_characters_are_whole(bench: Bench) -> None:
    bench.say("é € 𝄞 ünïcode")
    chunks = [json.loads(event) for event in events_of((await bench.chat(stream=True)).text)[:-1]]
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == "é € 𝄞 ünïcode"
    assert not any("\ufffd" in text for text in texts)


async def test_max_completion_tokens_has_priority(bench: Bench) -> None:
    bench.say(SAY)
    answer = (await bench.chat(max_tokens=5, max_completion_tokens=2)).json()
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (2, "length")


async def test_the_callers_request_id_is_echoed_but_not_used(bench: Bench) -> None:
    headers = {"x-request-id": "mine", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    body = {"messages": [{"role": "user", "content": "hi"}]}
    posts = [bench.http.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2)]
    answers = await asyncio.gather(*posts)
    assert [answer.headers["x-request-id"] for answer in answers] == ["mine", "mine"]
    assert len({request.request_id for request in bench.fleet.requests("decode")}) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [], "parallel_tool_calls": True, "store": False, "metadata": {"a": "b"}, "service_tier": "auto"},
        {"tool_choice": "none"},
        {"tool_choice": "auto", "tools": []},
        {"tool_choice": None, "user": "someone", "response_format": {"type": "text"}, "n": 1},
        {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "presence_penalty": 0.5, "seed": 3},
    ],
)
async def test_standard_and_extra_fields_are_taken(bench: Bench, fields: dict[str, Any]) -> None:
    assert (await bench.chat(**fields)).status_code == 200


async def test_sampling_reaches_the_workers(bench: Bench) -> None:
    await bench.chat(temperature=0.5, top_p=0.25, seed=9, max_tokens=4, frequency_penalty=-1, ignore_eos=True)
    sampling = bench.fleet.requests("decode")[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens) == (0.5, 0.25, 9, 4)
    assert sampling == bench.fleet.requests("prefill")[0].sampling


async def test_defaults_are_the_checkpoints(bench: Bench) -> None:
    await bench.chat()
    sampling = bench.fleet.requests("decode")[0].sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.HasField("seed")) == (0.0, 1024, True)


async def test_odd_conversations_are_answered(bench: Bench) -> None:
    user, answer = {"role": "user", "content": "A"}, {"role": "assistant", "content": ""}
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    quoting = {"role": "tool", "content": "source: <image> <|image_pad|>", "tool_call_id": "1"}
    for messages in ([user, answer, user], [answer], [user, refusal], [user, {"role": "assistant"}, quoting]):
        reply = await bench.http.post("/v1/chat/completions", json={"messages": messages})
        assert (reply.status_code, reply.json()["usage"]["triptych"]["images"]) == (200, 0)


async def test_what_a_stream_says_is_what_the_whole_answer_says_on_every_interface(bench: Bench) -> None:
    """Special tokens in the answer, a stop string over two tokens, one and two answers."""
    bench.say("é alpha beta gamma")
    bench.fleet.script.answer[2:2] = [1011, 1022]
    options: dict[str, Any] = {"stop": ["a gamma"], "max_tokens": 60}
    said = set()
    for n in (1, 2):
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
            ("/v1/completions", {"prompt": "hi"}),
        ):
            asked = {**body, **options, "n": n}
            whole = (await bench.http.post(path, json=asked)).json()
            said |= {choice.get("text", choice.get("message", {}).get("content")) for choice in whole["choices"]}
            said |= streamed((await bench.http.post(path, json=asked | {"stream": True})).text, n)
        message = Message(role="user", content=[ContentPart(text="hi")])
        request = GenerateRequest(messages=[message], stop=options["stop"], n=n)
        deltas = [response.delta async for response in bench.stub.Generate(request)]
        said |= {"".join(delta.text for delta in deltas if delta.index == index) for index in range(n)}
    assert said == {"é alpha bet"}


def streamed(text: str, n: int) -> set[str]:
    """What each of `n` answers says over all chunks."""
    choices = [json.loads(event)["choices"][0] for event in events_of(text)[:-1]]
    pieces = [
        (choice["index"], choice.get("text") or choice.get("delta", {}).get("content") or "") for choice in choices
    ]
    return {"".join(piece for at, piece in pieces if at == index) for index in range(n)}


@pytest.mark.parametrize("content", [None, "", []])
async def test_empty_content_is_the_empty_text(bench: Bench, content: Any) -> None:
    assert (await bench.chat(content)).status_code == 200
