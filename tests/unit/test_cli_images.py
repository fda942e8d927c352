"""`triptych images` and the SDK call behind it, on a fake router with a picture a page."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.unit.sdk_router import FakeRouter, serve_router
from triptych import AsyncClient, Client
from triptych.cli.app import app
from triptych.cli.images import ago, summary, to_table

NAMES = ["a" * 64, "b" * 64, "c" * 64]


@pytest.fixture
def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
def address(router: FakeRouter) -> Iterator[str]:
    with serve_router(router) as where:
        yield where


async def test_both_clients_read_all_pages(router: FakeRouter, address: str) -> None:
    router.known = dict.fromkeys(NAMES, b"")
    with Client(address) as client:
        listing = client.list_images()
    async with AsyncClient(address) as async_client:
        assert await async_client.list_images() == listing
    assert [known.image.digest for known in listing.images] == NAMES
    assert [list(group.image_ids) for group in listing.look_alikes] == [NAMES[:2]]
    assert listing.next_page_token == ""


def test_the_table_names_pictures_and_what_was_needless(router: FakeRouter, address: str) -> None:
    router.known = dict.fromkeys(NAMES, b"")
    with Client(address) as client:
        listing = client.list_images()
    console = Console(width=140)
    with console.capture() as capture:
        console.print(to_table(listing, 7200.0))
    assert all(text in capture.get() for text in ("aaaaaaaaaaaa", "4x2", "#1", "2 h ago"))
    assert summary(listing) == ["3 pictures", "#1: same picture, 2 encodings, 1 needless encode (2 forms are known)"]


def test_the_command_prints_a_table_or_json(router: FakeRouter, address: str) -> None:
    router.known = dict.fromkeys(NAMES, b"")
    runner = CliRunner()
    assert "same picture, 2 encodings" in runner.invoke(app, ["images", "--address", address]).stdout
    content = json.loads(runner.invoke(app, ["images", "--address", address, "--json"]).stdout)
    assert [each["image_id"] for each in content["images"]] == NAMES
    assert content["look_alikes"] == [{"image_ids": NAMES[:2], "encodings": 2, "needless_encodes": 1}]


def test_nothing_known_is_no_failure(address: str) -> None:
    result = CliRunner().invoke(app, ["images", "--address", address])
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "0 pictures")


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0 s ago"), (59, "59 s ago"), (61, "1 min ago"), (7300, "2 h ago")])
def test_durations_are_told_in_their_largest_unit(seconds: float, text: str) -> None:
    assert ago(seconds) == text
