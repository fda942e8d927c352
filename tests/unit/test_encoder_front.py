"""The encoder's front without Ray: admission, messages, errors as values, options."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from services.encoder.deployment import EncoderDeployment, as_value, deployment_options
from services.encoder.load import Load
from services.encoder.servicer import EncoderServicer, to_tasks
from services.encoder.settings import EncoderSettings
from services.encoder.work import Done, Failure, Task
from triptych.errors import (
    ConfigError,
    ImagesNotFoundError,
    InternalError,
    InvalidArgumentError,
    InvalidImageError,
    ResourceExhaustedError,
    TriptychError,
    UnavailableError,
)
from triptych.v1 import encoder_pb2


def task(number: int = 0, tokens: int = 10) -> Task:
    return Task(f"{number:064x}", "b" * 64, "c" * 64, tokens, 3, 2)


def image(number: int = 0, **changes: Any) -> encoder_pb2.EncodeImage:
    fields = {"embedding_key": f"{number:064x}", "image_id": "b" * 64, "cache_scope": "c" * 64}
    return encoder_pb2.EncodeImage(**{**fields, "tokens": 10, "width": 3, "height": 2, **changes})


def request(*images: encoder_pb2.EncodeImage) -> encoder_pb2.EncodeRequest:
    return encoder_pb2.EncodeRequest(images=images)


def test_a_message_becomes_tasks_in_order() -> None:
    assert to_tasks(request(image(1), image(2))) == [task(1), task(2)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"embedding_key": "A" * 64}, "embedding_key"),
        ({"image_id": "b" * 63}, "image_id"),
        ({"cache_scope": ""}, "cache_scope"),
        ({"tokens": 0}, "tokens"),
        ({"width": 0}, "width"),
        ({"height": 0}, "height"),
    ],
)
def test_a_bad_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        to_tasks(request(image(1), image(2, **changes)))
    assert caught.value.param == f"images[1].{field}"


@pytest.mark.parametrize("images", [(), (image(1), image(1))])
def test_nothing_and_the_same_twice_are_refused(images: tuple[encoder_pb2.EncodeImage, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        to_tasks(request(*images))


def test_accepted_tokens_are_bounded_with_a_retry_delay() -> None:
    load = Load(max_tokens=25)
    load.admit([task(1), task(2)])
    with pytest.raises(ResourceExhaustedError) as caught:
        load.admit([task(3)])
    assert caught.value.retry_after_s


def test_a_call_alone_is_taken_whatever_its_size() -> None:
    load = Load(max_tokens=5)
    load.admit([task(tokens=100)])
    assert load.response().pending_tokens == 100


def test_draining_takes_nothing_new() -> None:
    load = Load(max_tokens=100)
    load.draining = True
    with pytest.raises(UnavailableError):
        load.admit([task()])


Ensure = Callable[[Task], Awaitable[Done]]


class NoContext:
    """The one thing the servicer asks of its call."""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls it never: the generator ends first in these tests."""


def encode(ensure: Ensure, load: Load, *images: encoder_pb2.EncodeImage) -> AsyncGenerator[Any, None]:
    return EncoderServicer(ensure, load).Encode(request(*images), NoContext())  # type: ignore[arg-type]


def empty(load: Load) -> bool:
    return (load.calls, load.tokens) == (0, 0)


async def test_answers_come_as_they_are_ready() -> None:
    async def ensure(one: Task) -> Done:
        await asyncio.sleep(0.05 if one == task(1) else 0)
        return Done(one.embedding_key, 2, 7, 9)

    load = Load(100)
    keys = [response.embedding_key async for response in encode(ensure, load, image(1), image(2))]
    assert keys == [task(2).embedding_key, task(1).embedding_key]
    assert empty(load)


async def test_the_first_failure_ends_the_call_and_cancels_the_rest() -> None:
    cancelled = asyncio.Event()

    async def ensure(one: Task) -> Done:
        if one == task(1):
            raise InvalidImageError("bad")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    load = Load(100)
    async with aclosing(encode(ensure, load, image(1), image(2))) as responses:
        with pytest.raises(InvalidImageError):
            await anext(responses)
    await asyncio.wait_for(cancelled.wait(), 5)
    await asyncio.sleep(0)
    assert empty(load)


@pytest.mark.parametrize(
    "error",
    [
        InvalidImageError("bad", param="images[0]"),
        UnavailableError("later", retry_after_s=2.5),
        ImagesNotFoundError(["a" * 64, "b" * 64]),
        ConfigError("no"),
    ],
)
def test_an_error_survives_as_a_value(error: TriptychError) -> None:
    back = pickle.loads(pickle.dumps(Failure.of(error))).error()
    assert type(back) is type(error)
    assert vars(back) == vars(error)


async def test_an_unexpected_error_keeps_its_details_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def call() -> None:
        raise ZeroDivisionError("secret path")

    failure = await as_value(call)
    assert isinstance(failure, Failure) and isinstance(failure.error(), InternalError)
    assert "secret" not in failure.message
    assert "secret path" in caplog.text


def settings(*flags: str) -> EncoderSettings:
    return EncoderSettings.load(["--model", "somewhere", *flags])


async def unheard(_: object) -> None:
    """A front that is told nothing."""


async def test_a_replica_without_a_tower_says_why_once_and_is_then_found_ill() -> None:
    replica = EncoderDeployment(settings().for_replica(), unheard)
    await replica.check_health()
    said = await replica.describe()
    assert isinstance(said, Failure) and "somewhere" in said.message
    with pytest.raises(type(said.error())):
        await replica.check_health()


async def test_a_replica_without_a_tower_sends_its_pictures_elsewhere() -> None:
    answer = await EncoderDeployment(settings().for_replica(), unheard).ensure(task(), ())
    assert isinstance(answer, Failure) and isinstance(answer.error(), UnavailableError)


def test_a_fixed_number_of_replicas_needs_no_autoscaling() -> None:
    options = deployment_options(settings("--replicas", "3"))
    assert options["num_replicas"] == 3
    assert "autoscaling_config" not in options


def test_autoscaling_stays_between_the_bounds() -> None:
    scaling = deployment_options(settings("--replicas", "1", "--max-replicas", "4"))["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 4)


def test_replicas_may_share_a_gpu() -> None:
    options = deployment_options(settings("--gpus-per-replica", "0.25"))
    assert options["ray_actor_options"]["num_gpus"] == 0.25


@pytest.mark.parametrize(
    "flags", [("--replicas", "2", "--max-replicas", "1"), ("--threads", "0"), ("--dtype", "float8")]
)
def test_senseless_settings_stop_the_process(flags: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        settings(*flags)


def test_what_a_replica_is_told_crosses_processes() -> None:
    given = settings("--threads", "2").for_replica()
    assert pickle.loads(pickle.dumps(given)) == given
