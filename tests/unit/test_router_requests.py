"""Checks, defaults and the account of a request."""

from __future__ import annotations

import base64
import json
from itertools import count
from pathlib import Path

import pytest

from services.router.defaults import AnswerDefaults, load_defaults
from services.router.figures.account import Account
from services.router.http.data_url import read_data_url
from services.router.http.model import MAX_VALUES, parse_body
from services.router.http.schema import ChatRequest
from services.router.prompts.messages import MAX_ARGUMENTS, MAX_MESSAGES, check_messages
from services.router.prompts.prompt import characters, pieces
from services.router.sampling import resolve_sampling
from tests.unit.router_tokenizers import DEMO
from triptych.errors import (
    ConfigError,
    ContextLengthError,
    InvalidArgumentError,
    InvalidImageError,
    PayloadTooLargeError,
)
from triptych.v1.encoder_pb2 import EncodeOutcome, EncodeResponse
from triptych.v1.prefill_pb2 import PrefillResponse
from triptych.v1.router_pb2 import GenerateRequest, RawPrompt
from triptych.v1.types_pb2 import ContentPart, ImageRef, ImageSpan, Message, Prompt, SamplingParams, ToolCall

DEFAULTS = AnswerDefaults(context_length=100, max_tokens=50, temperature=0.25)
IMAGE = ContentPart(image=ImageRef(digest="0" * 64))


def test_unset_sampling_is_filled_in() -> None:
    params = resolve_sampling(SamplingParams(), 10, DEFAULTS)
    assert (params.max_tokens, params.temperature, params.HasField("seed")) == (50, 0.25, True)


def test_given_sampling_is_kept() -> None:
    asked = SamplingParams(max_tokens=5, temperature=0, seed=0, top_k=3, top_logprobs=0)
    assert resolve_sampling(asked, 10, DEFAULTS) == asked


def test_unset_max_tokens_is_what_the_context_leaves() -> None:
    assert resolve_sampling(SamplingParams(), 70, DEFAULTS).max_tokens == 30
    assert resolve_sampling(SamplingParams(), 99, DEFAULTS).max_tokens == 1


@pytest.mark.parametrize(("asked", "prompt", "param"), [(31, 70, "max_tokens"), (None, 100, "messages")])
def test_what_does_not_fit_is_refused_with_the_numbers(asked: int | None, prompt: int, param: str) -> None:
    with pytest.raises(ContextLengthError, match=f"{prompt}.*100") as caught:
        resolve_sampling(SamplingParams(max_tokens=asked), prompt, DEFAULTS)
    assert caught.value.param == param


def test_seeds_differ_between_requests() -> None:
    assert len({resolve_sampling(SamplingParams(), 1, DEFAULTS).seed for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("generation", "temperature"),
    [
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"temperature": 0.5}, 0.5),
        ({"do_sample": True}, 1.0),
        (None, 1.0),
    ],
)
def test_the_default_temperature_is_the_checkpoints(tmp_path: Path, generation: object, temperature: float) -> None:
    (tmp_path / "config.json").write_text((DEMO / "config.json").read_text())
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert load_defaults(tmp_path, None, 10) == AnswerDefaults(4096, 10, temperature)


def test_the_context_can_only_be_shortened() -> None:
    assert load_defaults(DEMO, 128, 10).context_length == 128
    with pytest.raises(ConfigError, match="4096"):
        load_defaults(DEMO, 5000, 10)


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_pictures_are_refused_by_the_name_of_the_message(role: str) -> None:
    messages = [Message(role="user"), Message(role=role, content=[IMAGE])]
    with pytest.raises(InvalidArgumentError) as caught:
        check_messages(messages, 16)
    assert caught.value.param == "messages[1]"


def test_pictures_are_found_in_order() -> None:
    messages = [Message(role="user", content=[ContentPart(text="a"), IMAGE]), Message(role="tool", content=[IMAGE])]
    assert [use.param for use in check_messages(messages, 2)] == [
        "messages[0].content[1].image",
        "messages[1].content[0].image",
    ]


def test_too_many_pictures_are_counted() -> None:
    with pytest.raises(InvalidArgumentError, match="1 images, this one has 2"):
        check_messages([Message(role="user", content=[IMAGE, IMAGE])], 1)


@pytest.mark.parametrize(
    "messages",
    [
        [Message(role="user")] * (MAX_MESSAGES + 1),
        [Message(role="user", content=[ContentPart(text="")] * MAX_MESSAGES), Message(role="user", content=[IMAGE])],
        [Message(role="assistant", tool_calls=[ToolCall(name="f", arguments=f'{{"a": "{"x" * MAX_ARGUMENTS}"}}')])],
    ],
    ids=["messages", "parts", "arguments"],
)
def test_a_conversation_has_bounds(messages: list[Message]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_messages(messages, 16)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("value", [b"[],", b"{},"])
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(value: bytes) -> None:
    with pytest.raises(PayloadTooLargeError):
        parse_body(ChatRequest, b'{"messages": [' + value * MAX_VALUES)


def test_a_data_url_may_be_percent_encoded_or_url_safe() -> None:
    data = bytes([251, 255, 190] * 3)
    text = base64.b64encode(data).decode()
    for form in (text.replace("+", "%2B").replace("/", "%2F"), base64.urlsafe_b64encode(data).decode()):
        assert read_data_url(f"data:image/png;base64,{form}", 100, "p") == data


def test_a_large_data_url_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(PayloadTooLargeError, match="limit is 10"):
        read_data_url("data:image/png;base64," + "@" * 40, 10, "p")


def test_a_data_url_without_a_comma_is_none() -> None:
    with pytest.raises(InvalidImageError):
        read_data_url("data:image/png;base64", 10, "p")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": 3}, "messages"),
        ({}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [], "stop": 5}, "stop"),
    ],
)
def test_bad_bodies_name_the_field(body: object, param: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_body(ChatRequest, json.dumps(body).encode())
    assert caught.value.param == param


def test_the_account_adds_up() -> None:
    ticks = count(0, 10)
    account = Account(lambda: next(ticks))
    account.encode_began()
    account.prefill_opened()
    account.encoded(EncodeResponse(embedding_key="a", outcome=EncodeOutcome.ENCODE_OUTCOME_COMPUTED))
    account.prefilled(PrefillResponse(queue_ns=3, cache_read_tokens=4, cache_creation_tokens=3))
    account.received(1)
    account.received(2)
    prompt = Prompt(
        token_ids=range(9), images=[ImageSpan(length=2, embedding_key="a"), ImageSpan(length=2, embedding_key="a")]
    )
    usage = account.usage(prompt)
    assert (usage.visual_tokens, usage.images, usage.unique_images, usage.completion_tokens) == (4, 2, 1, 3)
    assert (usage.cache_read_tokens, usage.cache_creation_tokens, usage.uncached_tokens) == (4, 3, 2)
    assert (usage.times.queue_ns, usage.times.encode_ns, usage.times.first_token_ns, usage.times.total_ns) == (
        23,
        20,
        40,
        60,
    )


def test_a_request_that_went_on_elsewhere_has_one_account() -> None:
    account = Account(lambda: 0)
    account.prefilled(PrefillResponse(cache_read_tokens=4, cache_creation_tokens=3, compute_ns=5, transfer_bytes=7))
    account.prefilled(PrefillResponse(cache_read_tokens=9, cache_creation_tokens=0, compute_ns=1, transfer_bytes=2))
    usage = account.usage(Prompt(token_ids=range(9)))
    assert (usage.cache_read_tokens, usage.cache_creation_tokens, usage.uncached_tokens) == (4, 3, 2)
    assert (usage.times.prefill_ns, usage.kv_transfer_bytes) == (6, 9)


def test_tokens_of_the_answer_are_none_of_the_prompt() -> None:
    account = Account(lambda: 0)
    account.prefilled(PrefillResponse(cache_read_tokens=8, cache_creation_tokens=4))
    usage = account.usage(Prompt(token_ids=range(9)))
    assert (usage.cache_read_tokens, usage.cache_creation_tokens, usage.uncached_tokens) == (8, 1, 0)


def test_what_an_earlier_attempt_computed_is_a_miss() -> None:
    account = Account(lambda: 0)
    for outcome in (EncodeOutcome.ENCODE_OUTCOME_COMPUTED, EncodeOutcome.ENCODE_OUTCOME_HIT):
        account.encoded(EncodeResponse(embedding_key="a", outcome=outcome))
    usage = account.usage(Prompt())
    assert (usage.embedding_hits, usage.embedding_misses) == (0, 1)


def test_a_prompt_is_as_long_as_its_texts_or_its_tokens_and_has_as_many_pieces_as_the_template_sees() -> None:
    raw = GenerateRequest(prompt=RawPrompt(token_ids=[0] * 9))
    empty = Message(role="user", content=[ContentPart(text="")] * 3)
    talk = GenerateRequest(messages=[empty, Message(role="assistant", tool_calls=[ToolCall(name="f")])])
    assert [(characters(each), pieces(each)) for each in (raw, talk)] == [(9, 0), (1, 6)]
