"""The blocking client and the command send an API key with every call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.sdk_router import FakeRouter, serve_router
from triptych import Client, Image
from triptych.cli.app import app
from triptych.errors import InvalidArgumentError


class Doorman(FakeRouter):
    """Writes down with which key each method was called."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[tuple[str, Any]] = []

    def note(self, method: str, context: Any) -> None:
        self.keys.append((method, dict(context.invocation_metadata()).get("authorization")))

    def Generate(self, request: Any, context: Any) -> Any:
        self.note("Generate", context)
        yield from super().Generate(request, context)

    def PutImage(self, request_iterator: Any, context: Any) -> Any:
        self.note("PutImage", context)
        return super().PutImage(request_iterator, context)

    def ListModels(self, request: Any, context: Any) -> Any:
        self.note("ListModels", context)
        return super().ListModels(request, context)


@pytest.fixture
def router() -> Iterator[tuple[Doorman, str]]:
    doorman = Doorman()
    with serve_router(doorman) as address:
        yield doorman, address


def test_every_kind_of_call_carries_the_key(router: tuple[Doorman, str]) -> None:
    doorman, address = router
    with Client(address, api_key="tk-1") as client:
        client.list_models()
        client.generate([Image.from_bytes(b"picture"), "hello"]).answer()
    assert [method for method, _ in doorman.keys] == ["ListModels", "Generate", "PutImage", "Generate"]
    assert {key for _, key in doorman.keys} == {"Bearer tk-1"}


def test_no_key_is_sent_unless_there_is_one(router: tuple[Doorman, str]) -> None:
    doorman, address = router
    with Client(address) as client:
        client.list_models()
    assert doorman.keys == [("ListModels", None)]


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", "a\0"])
def test_a_key_that_no_header_can_hold_is_refused_without_repeating_it(key: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Client("127.0.0.1:1", api_key=key)
    assert key not in caught.value.message


@pytest.mark.parametrize(("flags", "env"), [(["--api-key", "tk-2"], {}), ([], {"TRIPTYCH_API_KEY": "tk-2"})])
def test_the_command_takes_the_key_from_flag_or_environment(
    router: tuple[Doorman, str], flags: list[str], env: dict[str, str]
) -> None:
    doorman, address = router
    done = CliRunner().invoke(app, ["chat", "hello", "--address", address, *flags], env=env)
    assert (done.exit_code, doorman.keys[0][1]) == (0, "Bearer tk-2"), done.output
