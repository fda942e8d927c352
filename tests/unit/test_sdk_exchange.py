"""The clients' shared logic without any connection: options, deadline, uploads."""

from __future__ import annotations

from typing import Any

import pytest

from triptych import Image, user
from triptych.errors import (
    DeadlineExceededError,
    ImagesNotFoundError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from triptych.exchange import Exchange
from triptych.v1.router_pb2 import GenerateDelta, GenerateResponse, GenerateStarted

RED, BLUE = Image.from_bytes(b"red"), Image.from_bytes(b"blue")


def test_options_go_where_the_contract_has_them() -> None:
    exchange = Exchange("hi", "toy", {"max_tokens": 3, "temperature": 0.0, "stop": "end", "cache_salt": "s"})
    request = exchange.request
    assert (request.model, request.sampling.max_tokens, list(request.stop)) == ("toy", 3, ["end"])
    assert request.sampling.HasField("temperature") and exchange.cache_salt == "s"


def test_none_means_not_set() -> None:
    request = Exchange("hi", "", {"max_tokens": None, "stop": None, "cache_salt": None}).request
    assert not request.sampling.HasField("max_tokens") and not request.HasField("cache_salt")


@pytest.mark.parametrize("options", [{"max_token": 3}, {"max_tokens": "three"}, {"max_tokens": -1}, {"stop": [1]}])
def test_bad_options_are_invalid_arguments(options: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Exchange("hi", "", options)


def test_deadline_counts_down_and_ends() -> None:
    now = [100.0]
    exchange = Exchange("hi", "", {"timeout_s": 5.0}, now=lambda: now[0])
    now[0] = 102.0
    assert exchange.left_s() == 3.0
    now[0] = 105.0
    with pytest.raises(DeadlineExceededError):
        exchange.left_s()


def test_without_a_timeout_there_is_no_deadline() -> None:
    assert Exchange("hi", "", {}).left_s() is None


def test_missing_pictures_are_handed_out_once() -> None:
    exchange = Exchange(user(RED, BLUE), "", {})
    exchange.on_failure(ImagesNotFoundError([BLUE.digest, BLUE.digest]))
    assert exchange.take_uploads() == [BLUE]
    assert exchange.take_uploads() == []


def test_a_second_miss_of_one_picture_is_the_callers_error() -> None:
    exchange = Exchange(user(RED), "", {})
    exchange.on_failure(ImagesNotFoundError([RED.digest]))
    with pytest.raises(ImagesNotFoundError):
        exchange.on_failure(ImagesNotFoundError([RED.digest]))


def test_pictures_missing_after_the_start_are_not_repeated() -> None:
    exchange = Exchange(user(RED), "", {})
    exchange.on_response(GenerateResponse(started=GenerateStarted()))
    with pytest.raises(ImagesNotFoundError):
        exchange.on_failure(ImagesNotFoundError([RED.digest]))


def test_a_failure_is_tried_again_until_the_answer_begins() -> None:
    exchange = Exchange("hi", "", {})
    exchange.on_response(GenerateResponse(started=GenerateStarted()))
    assert exchange.on_failure(UnavailableError("gone")) > 0
    assert exchange.on_response(GenerateResponse(started=GenerateStarted())) == []
    exchange.on_response(GenerateResponse(delta=GenerateDelta(text="a")))
    with pytest.raises(UnavailableError):
        exchange.on_failure(UnavailableError("gone again"))


def test_no_pause_outlasts_the_deadline() -> None:
    exchange = Exchange("hi", "", {"timeout_s": 5.0}, now=lambda: 100.0)
    with pytest.raises(ResourceExhaustedError):
        exchange.on_failure(ResourceExhaustedError("full", retry_after_s=5.0))


def test_events_of_a_later_version_are_skipped() -> None:
    assert Exchange("hi", "", {}).on_response(GenerateResponse()) == []


def test_an_incomplete_answer_is_unavailable() -> None:
    with pytest.raises(UnavailableError):
        Exchange("hi", "", {}).answer()
