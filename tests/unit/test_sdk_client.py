"""The two clients against a real gRPC server: uploads on demand, streaming, errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.unit.sdk_router import FakeRouter, serve_router
from triptych import AsyncClient, Client, Delta, Finished, Image, Retry, Started, user
from triptych.cli.top import watch
from triptych.errors import (
    ClientClosedError,
    ContextLengthError,
    DeadlineExceededError,
    ImagesNotFoundError,
    InvalidArgumentError,
    RequestCancelledError,
    ResourceExhaustedError,
    TriptychError,
    UnavailableError,
)
from triptych.uploads import CHUNK_BYTES

ONCE = Retry(tries=1)
QUICK = Retry(first_pause_s=0.001)
RED = Image.from_bytes(b"red" * 1000)
BLUE = Image.from_bytes(b"blue" * 1000)


@pytest.fixture
def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
def address(router: FakeRouter) -> Iterator[str]:
    with serve_router(router) as where:
        yield where


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, retry=QUICK) as opened:
        yield opened


@pytest.fixture
async def async_client(address: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address, retry=QUICK) as opened:
        yield opened


def test_answer_is_the_sum_of_its_events(client: Client) -> None:
    answer = client.generate("hi", request_id="mine").answer()
    assert (answer.text, answer.finish_reason, answer.request_id) == ("a red circle", "length", "mine")
    assert len(answer.tokens) == 2 and answer.usage.prompt_tokens == 7


def test_events_come_in_order(client: Client) -> None:
    assert [type(event) for event in client.generate("hi")] == [Started, Delta, Delta, Finished]


def test_text_streams_the_pieces(client: Client) -> None:
    assert list(client.generate("hi").text()) == ["a red", " circle"]


async def test_async_text_streams_the_pieces(async_client: AsyncClient) -> None:
    assert [piece async for piece in async_client.generate("hi").text()] == ["a red", " circle"]


def test_no_pixels_travel_when_the_picture_is_known(client: Client, router: FakeRouter) -> None:
    router.known[RED.digest] = b"known"
    client.generate([RED, "what is it?"]).answer()
    assert router.received_bytes == 0 and len(router.requests) == 1


def test_exactly_the_missing_pictures_are_uploaded_once(client: Client, router: FakeRouter) -> None:
    router.known[RED.digest] = b"known"
    client.generate([user(RED, BLUE, "which?"), user(BLUE, "and now?")]).answer()
    assert router.uploads == [BLUE.digest]
    assert router.known[BLUE.digest] == BLUE.data


async def test_async_uploads_exactly_the_missing_pictures(async_client: AsyncClient, router: FakeRouter) -> None:
    router.known[RED.digest] = b"known"
    answer = await async_client.generate([RED, BLUE, "which?"]).answer()
    assert answer.usage.images == 2
    assert router.received_bytes == len(b"blue" * 1000)


def test_second_request_sends_no_pixels(client: Client, router: FakeRouter) -> None:
    for _ in range(2):
        client.generate([RED, "what is it?"]).answer()
    assert router.uploads == [RED.digest]


def test_uploads_are_cut_into_chunks(client: Client, router: FakeRouter) -> None:
    large = Image.from_bytes(b"x" * (2 * CHUNK_BYTES + 5))
    client.put_image(large)
    assert router.largest_chunk == CHUNK_BYTES
    assert router.known[large.digest] == large.data


def test_a_server_that_forgets_uploads_ends_in_an_error(client: Client, router: FakeRouter) -> None:
    router.forgetful = True
    with pytest.raises(ImagesNotFoundError):
        client.generate([RED, "what is it?"]).answer()
    assert router.uploads == [RED.digest]


def test_a_picture_without_bytes_cannot_be_uploaded(client: Client, router: FakeRouter) -> None:
    with pytest.raises(ImagesNotFoundError) as caught:
        client.generate([Image(RED.digest), "what is it?"]).answer()
    assert caught.value.digests == (RED.digest,) and router.uploads == []


def test_put_image_sends_nothing_when_it_is_known(client: Client, router: FakeRouter) -> None:
    client.put_image(RED)
    assert client.put_image(RED).digest == RED.digest
    assert router.uploads == [RED.digest]


async def test_async_put_image_sends_nothing_when_it_is_known(async_client: AsyncClient, router: FakeRouter) -> None:
    await async_client.put_image(RED)
    await async_client.put_image(RED)
    assert router.uploads == [RED.digest]


def test_find_images_tells_known_from_missing(client: Client) -> None:
    client.put_image(RED)
    answer = client.find_images([RED.digest, BLUE.digest])
    assert [record.digest for record in answer.found] == [RED.digest]
    assert list(answer.missing) == [BLUE.digest]


async def test_models_are_listed_alike_by_both_clients(client: Client, async_client: AsyncClient) -> None:
    assert [card.name for card in client.list_models()] == ["toy"]
    assert await async_client.list_models() == client.list_models()


async def test_tokenize_uploads_what_is_missing(client: Client, async_client: AsyncClient, router: FakeRouter) -> None:
    assert len(client.tokenize([RED, "what is it?"]).token_ids) == 13
    assert router.uploads == [RED.digest]
    assert await async_client.tokenize("what is it?") == client.tokenize("what is it?")


FAILURES: list[Callable[[], TriptychError]] = [
    lambda: ContextLengthError("too long", param="messages"),
    lambda: ResourceExhaustedError("full", retry_after_s=1.5),
]


@pytest.mark.parametrize("make", FAILURES)
def test_the_servers_error_arrives_as_it_was_raised(
    address: str, router: FakeRouter, make: Callable[[], TriptychError]
) -> None:
    router.failure = make()
    with Client(address, retry=ONCE) as client, pytest.raises(type(router.failure)) as caught:
        client.generate("hi").answer()
    assert vars(caught.value) == vars(router.failure)


async def test_async_errors_are_the_same(async_client: AsyncClient, router: FakeRouter) -> None:
    router.failure = ContextLengthError("too long", param="messages")
    with pytest.raises(ContextLengthError, match="too long"):
        await async_client.generate("hi").answer()


def test_a_stream_without_its_end_is_an_error(client: Client, router: FakeRouter) -> None:
    router.cut = True
    with pytest.raises(UnavailableError):
        client.generate("hi").answer()


async def test_async_stream_without_its_end_is_an_error(async_client: AsyncClient, router: FakeRouter) -> None:
    router.cut = True
    with pytest.raises(UnavailableError):
        await async_client.generate("hi").answer()


def test_nobody_listening_names_the_address() -> None:
    with Client("127.0.0.1:1", retry=ONCE) as client, pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        client.list_models()


def test_a_deadline_in_the_past_sends_nothing(client: Client, router: FakeRouter) -> None:
    with pytest.raises(DeadlineExceededError):
        client.generate("hi", timeout_s=0.0).answer()
    assert router.requests == []


def test_closing_a_stream_twice_is_harmless(client: Client) -> None:
    stream = client.generate("hi")
    next(iter(stream))
    stream.close()
    stream.close()
    assert list(stream) == []


async def test_closing_an_async_stream_ends_it(async_client: AsyncClient) -> None:
    stream = async_client.generate("hi")
    await anext(aiter(stream))
    await stream.close()
    assert [event async for event in stream] == []


def test_what_fails_for_now_is_tried_again(client: Client, router: FakeRouter) -> None:
    router.failures = [UnavailableError("no decode worker"), ResourceExhaustedError("full", retry_after_s=0.01)]
    assert client.generate("hi").answer().text == "a red circle"
    assert len(router.requests) == 3


async def test_async_calls_are_tried_again(async_client: AsyncClient, router: FakeRouter) -> None:
    router.failures = [UnavailableError("starting"), UnavailableError("starting")]
    assert [card.name for card in await async_client.list_models()] == ["toy"]


async def test_watching_goes_on_when_a_router_leaves(
    client: Client, async_client: AsyncClient, router: FakeRouter
) -> None:
    router.failures = [UnavailableError("draining"), UnavailableError("starting")]
    assert len(list(client.watch_cluster())) == 1
    router.failures = [UnavailableError("draining"), UnavailableError("starting")]
    assert len([snapshot async for snapshot in async_client.watch_cluster()]) == 1


def test_a_router_that_was_seen_is_waited_for(client: Client, router: FakeRouter) -> None:
    snapshots = watch(client, every_s=0.0)
    next(snapshots)
    router.failures = [UnavailableError("restarting")] * 10
    next(snapshots)
    snapshots.close()
    assert router.failures == []


def test_a_router_that_was_never_seen_is_not_waited_for(client: Client, router: FakeRouter) -> None:
    router.failures = [UnavailableError("wrong address")] * 10
    with pytest.raises(UnavailableError):
        next(watch(client, every_s=0.0))


def test_an_upload_that_fails_is_tried_again(client: Client, router: FakeRouter) -> None:
    router.failures = [ImagesNotFoundError([RED.digest]), UnavailableError("the store is starting")]
    client.generate([RED, "what is it?"]).answer()
    assert router.uploads == [RED.digest]


def test_what_can_never_succeed_is_not_tried_again(client: Client, router: FakeRouter) -> None:
    router.failure = ContextLengthError("too long")
    with pytest.raises(ContextLengthError):
        client.generate("hi").answer()
    assert len(router.requests) == 1


def test_tries_are_bounded(client: Client, router: FakeRouter) -> None:
    router.failure = UnavailableError("gone for good")
    with pytest.raises(UnavailableError):
        client.generate("hi").answer()
    assert len(router.requests) == QUICK.tries


def test_calls_after_close_are_our_error(client: Client) -> None:
    client.close()
    with pytest.raises(ClientClosedError):
        client.generate("hi").answer()
    with pytest.raises(ClientClosedError):
        client.list_models()


async def test_async_calls_after_close_are_our_error(async_client: AsyncClient) -> None:
    await async_client.close()
    with pytest.raises(ClientClosedError):
        await async_client.generate("hi").answer()
    with pytest.raises(ClientClosedError):
        await async_client.list_models()


async def test_closing_ends_answers_on_their_way_with_an_error(client: Client, async_client: AsyncClient) -> None:
    stream, async_stream = client.generate("hi"), async_client.generate("hi")
    next(iter(stream))
    await anext(aiter(async_stream))
    client.close()
    await async_client.close()
    with pytest.raises(RequestCancelledError):
        list(stream)
    with pytest.raises(RequestCancelledError):
        await async_stream.answer()


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:8000"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="host:port") as caught:
        Client(address)
    assert caught.value.param == "address"
