"""`triptych lint-prompt` from the outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.sdk_router import FakeRouter, serve_router
from triptych.cli.app import app
from triptych.errors import ConfigError

runner = CliRunner()
FIRST = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one two three"}]}
NEXT = [{"role": "assistant", "content": "four five"}, {"role": "user", "content": "and now?"}]


def lines(*requests: object) -> str:
    return "\n".join(json.dumps(request) for request in requests)


def grown(**changes: str) -> dict[str, object]:
    first = [{**message, "content": changes.get(message["role"], message["content"])} for message in FIRST["messages"]]
    return {"messages": [*first, *NEXT]}


@pytest.fixture
def address() -> Iterator[str]:
    with serve_router(FakeRouter()) as where:
        yield where


def test_requests_that_only_append_are_fine() -> None:
    result = runner.invoke(app, ["lint-prompt", "-"], input=lines(FIRST, grown()))
    assert result.exit_code == 0 and "nothing" in result.stdout


def test_findings_are_a_table_and_status_one(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(lines(FIRST, grown(system="It is 2026-11-29 10:00:00.")))
    result = runner.invoke(app, ["lint-prompt", str(tmp_path / "log.jsonl")])
    assert result.exit_code == 1
    assert "timestamp" in result.stdout and "system_changed" in result.stdout and "22 characters" in result.stdout


def test_findings_as_json_carry_their_hint() -> None:
    result = runner.invoke(app, ["lint-prompt", "-", "--json"], input=lines(FIRST, grown(system="Be long.")))
    (finding,) = json.loads(result.stdout)
    assert (finding["kind"], finding["request"], finding["message"]) == ("system_changed", 1, 0)
    assert finding["hint"].endswith(".") and result.exit_code == 1


def test_a_router_counts_the_tokens_lost(address: str) -> None:
    arguments = ["lint-prompt", "-", "--json", "--address", address]
    result = runner.invoke(app, arguments, input=lines(FIRST, grown(system="Be long.")))
    assert [finding["lost_tokens"] for finding in json.loads(result.stdout)] == [5]


def test_what_the_router_cannot_read_is_counted_in_characters(address: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    before = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}, *NEXT]}
    after = {"messages": [{"role": "user", "content": "What?"}, *NEXT]}
    arguments = ["lint-prompt", "-", "--address", address]
    result = runner.invoke(app, arguments, input=lines(before, after))
    assert "22 characters, 1 picture(s)" in result.stdout


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    assert isinstance(runner.invoke(app, ["lint-prompt", str(tmp_path / "none")]).exception, ConfigError)
