"""Conversations on a real gRPC server: what each turn sends, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.unit.sdk_router import FakeRouter, serve_router
from triptych import AsyncClient, AsyncConversation, Client, Conversation, Image, Message, Retry
from triptych.conversation import ImageReferences, ImageWindow, PrefixWarning, RollOver
from triptych.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from triptych.messages import ToolCall, tool

ONCE = Retry(tries=1)
RED, BLUE = Image.from_bytes(b"red"), Image.from_bytes(b"blue")


@pytest.fixture
def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
def address(router: FakeRouter) -> Iterator[str]:
    with serve_router(router) as where:
        yield where


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, retry=ONCE) as opened:
        yield opened


def answered(router: FakeRouter) -> list[list[str]]:
    """Roles of every request that did not ask for uploads."""
    return [[message.role for message in request.messages] for request in router.requests]


def test_every_turn_appends_to_the_one_before(client: Client, router: FakeRouter) -> None:
    talk = Conversation(client, instructions="Be brief.")
    assert talk.ask("one").answer().text == "a red circle"
    assert list(talk.ask("two").text()) == ["a red", " circle"]
    first, second = router.requests
    assert list(second.messages)[:2] == list(first.messages)
    assert answered(router)[1] == ["system", "user", "assistant", "user"]


def test_all_turns_carry_the_session_and_the_options(client: Client, router: FakeRouter) -> None:
    talk = Conversation(client, max_tokens=9, cache_salt="s")
    talk.ask("one").answer()
    talk.ask("two", max_tokens=3).answer()
    assert {request.session_id for request in router.requests} == {talk.session_id}
    assert [request.sampling.max_tokens for request in router.requests] == [9, 3]
    assert all(talk.session_id not in str(request.messages) for request in router.requests)


def test_results_of_functions_are_turns_as_well(client: Client, router: FakeRouter) -> None:
    talk = Conversation(client)
    talk.ask("one").answer()
    talk.say(tool(ToolCall("1", "look", "{}"), "a star")).answer()
    assert [message.role for message in router.requests[-1].messages] == ["user", "assistant", "tool"]


def test_a_turn_that_fails_leaves_no_trace(client: Client, router: FakeRouter) -> None:
    talk = Conversation(client)
    router.failure = UnavailableError("gone")
    with pytest.raises(UnavailableError):
        talk.ask("one").answer()
    assert talk.log.messages == () and talk.answers == []


def test_a_turn_that_is_closed_early_leaves_no_trace(client: Client) -> None:
    talk = Conversation(client)
    stream = talk.ask("one")
    next(stream.text())
    stream.close()
    assert talk.log.messages == ()
    with pytest.raises(UnavailableError):
        stream.answer()


def test_two_turns_at_once_are_refused(client: Client) -> None:
    talk = Conversation(client)
    first, second = talk.ask("one"), talk.ask("two")
    next(iter(first))
    second.answer()
    with pytest.raises(FailedPreconditionError):
        first.answer()


def test_a_sliding_window_warns(client: Client) -> None:
    talk = Conversation(client, ImageWindow(1))
    talk.ask(RED, "what?").answer()
    with pytest.warns(PrefixWarning, match="from index 0"):
        talk.ask(BLUE, "and this?").answer()


def test_the_model_itself_writes_summaries_in_the_scope_of_the_conversation(client: Client, router: FakeRouter) -> None:
    talk = Conversation(client, RollOver(max_images=1), cache_salt="s")
    talk.ask(RED, "what?").answer()
    talk.ask(BLUE, "and this?").answer()
    asking = next(request for request in router.requests if "Summarise" in request.messages[-1].content[0].text)
    assert asking.cache_salt == "s" and asking.sampling.temperature == 0.0
    assert "a red circle" in router.requests[-1].messages[0].content[0].text


def test_a_writer_replaces_the_model(client: Client, router: FakeRouter) -> None:
    asked: list[Sequence[Message]] = []

    def write(messages: Sequence[Message]) -> str:
        asked.append(messages)
        return "a star"

    Conversation(client, ImageReferences(writer=write)).ask(RED, "what?").answer()
    assert len(asked) == 1 and "a star]" in router.requests[-1].messages[0].content[0].text


def test_an_async_writer_is_refused_by_a_blocking_conversation(client: Client) -> None:
    async def write(messages: Sequence[Message]) -> str:
        return "a star"

    with pytest.raises(InvalidArgumentError, match="string"):
        Conversation(client, ImageReferences(writer=write)).ask(RED).answer()


async def test_async_turns_append_and_await_their_writer(address: str, router: FakeRouter) -> None:
    async def write(messages: Sequence[Message]) -> str:
        return f"{len(messages)} messages"

    async with AsyncClient(address, retry=ONCE) as client:
        talk = AsyncConversation(client, RollOver(max_images=1, writer=write))
        assert (await talk.ask(RED, "what?").answer()).text == "a red circle"
        assert [piece async for piece in talk.ask(BLUE, "and this?").text()] == ["a red", " circle"]
    assert "3 messages" in router.requests[-1].messages[0].content[0].text
    assert [message.role for message in talk.log.messages] == ["user", "assistant"] * 2


async def test_the_model_itself_writes_for_async_conversations(address: str, router: FakeRouter) -> None:
    async with AsyncClient(address, retry=ONCE) as client:
        await AsyncConversation(client, ImageReferences()).ask(RED, "what?").answer()
    assert "a red circle]" in router.requests[-1].messages[0].content[0].text


async def test_an_async_turn_closed_early_leaves_no_trace(address: str) -> None:
    async with AsyncClient(address, retry=ONCE) as client:
        talk = AsyncConversation(client)
        stream = talk.ask("one")
        await anext(aiter(stream))
        await stream.close()
        assert talk.log.messages == ()
