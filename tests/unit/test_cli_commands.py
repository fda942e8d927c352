"""The sub-commands from the outside, with a fake router where one is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.unit.sdk_router import FakeRouter, serve_router
from triptych import Image
from triptych.cli import main
from triptych.cli.app import NAMES, app
from triptych.cli.chat import PolicyName, make_policy
from triptych.cli.demo import Outcome, ask, check, to_table
from triptych.cli.explain import to_table as to_explained
from triptych.cli.output import Reporter
from triptych.cli.script import Conversation, Turn, load_script
from triptych.client import Client
from triptych.conversation import AppendOnly, ImageReferences, Policy, RollOver
from triptych.errors import ConfigError, FailedPreconditionError
from triptych.v1.router_pb2 import Explanation
from triptych.version import VERSION

runner = CliRunner()
PICTURE = Image.from_bytes(b"picture")
RIGHT = Conversation("two turns", (Turn((PICTURE, "What?"), ("a.png",), "a red circle"),) * 2)
WRONG = Conversation("one turn", (Turn(("What?",), (), "a blue star"),))


@pytest.fixture
def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
def address(router: FakeRouter) -> Iterator[str]:
    with serve_router(router) as where:
        yield where


def outcomes(address: str, *conversations: Conversation) -> list[Outcome]:
    with Client(address) as client:
        return [outcome for conversation in conversations for outcome in ask(client, conversation)]


def test_version_is_printed() -> None:
    assert runner.invoke(app, ["version"]).stdout.strip() == VERSION


def test_help_names_every_command() -> None:
    shown = runner.invoke(app, ["--help"]).stdout
    assert all(f" {name} " in shown for name in NAMES)


def test_a_misspelt_command_is_suggested() -> None:
    result = runner.invoke(app, ["prob"])
    assert result.exit_code == 2 and "'probe'" in result.stderr


def test_a_probe_loads_no_other_command() -> None:
    """Every container runs it every few seconds."""
    look = "import sys, triptych.cli as cli\ntry: cli.main()\nfinally: print({'typer', 'rich'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", look, "probe", "127.0.0.1:1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (1, "set()")


def test_chat_prints_the_answer_and_its_account(address: str, router: FakeRouter, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"picture")
    result = runner.invoke(app, ["chat", "What?", "--image", str(tmp_path / "a.png"), "--address", address])
    assert result.exit_code == 0 and result.stdout.startswith("a red circle\n7 prompt tokens")
    assert router.uploads == [PICTURE.digest]


def test_chat_goes_on_turn_by_turn(address: str, router: FakeRouter, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"picture")
    turns = [f"@{tmp_path / 'a.png'} What?", "-"]
    result = runner.invoke(app, ["chat", *turns, "--address", address], input="And?\n\nWhy?\n")
    assert result.stdout.count("a red circle\n7 prompt tokens") == 3
    assert [len(request.messages) for request in router.requests] == [1, 1, 3, 5]


def test_chat_follows_a_policy_and_shows_its_warning(address: str, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    turns = [f"@{tmp_path / name} What?" for name in "ab"]
    options = ["--policy", "image-window", "--policy-images", "1"]
    result = runner.invoke(app, ["chat", *turns, "--address", address, *options])
    assert result.exit_code == 0 and result.stdout.count("warning: the window of pictures slid") == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("append-only", AppendOnly), ("roll-over", RollOver), ("references", ImageReferences)]
)
def test_policies_have_names(name: PolicyName, kind: type[Policy]) -> None:
    assert type(make_policy(name, 3)) is kind


def test_chat_passes_its_options_on(address: str, router: FakeRouter) -> None:
    runner.invoke(app, ["chat", "What?", "--address", address, "--max-tokens", "5", "--temperature", "0"])
    assert (router.requests[0].sampling.max_tokens, router.requests[0].sampling.temperature) == (5, 0)


def test_a_failure_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["triptych", "chat", "What?", "--address", "127.0.0.1:1"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.startswith("error: 127.0.0.1:1:")


@pytest.mark.parametrize("arguments", [["up", "--prefill", "0"], ["up", "--dtype", "int3"], ["chat"]])
def test_bad_usage_is_refused_before_anything_starts(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


def test_up_without_a_model_starts_nothing(tmp_path: Path) -> None:
    result = runner.invoke(app, ["up", "--model", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)


def test_every_turn_of_the_demo_sees_the_ones_before(address: str, router: FakeRouter) -> None:
    assert len(outcomes(address, RIGHT)) == 2
    assert [len(request.messages) for request in router.requests if router.uploads][-2:] == [1, 3]


def test_right_answers_pass(address: str) -> None:
    check(outcomes(address, RIGHT), 2)


def test_a_wrong_answer_fails_the_demo(address: str) -> None:
    with pytest.raises(FailedPreconditionError, match="2 of 3"):
        check(outcomes(address, RIGHT, WRONG), 3)


def test_an_unasked_question_fails_the_demo() -> None:
    with pytest.raises(FailedPreconditionError, match="0 of 2"):
        check([], 2)


def test_the_table_names_conversation_picture_and_verdict(address: str) -> None:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(to_table(outcomes(address, RIGHT, WRONG)))
    assert all(text in capture.get() for text in ("two turns", "a.png", "a red circle ✓", "✗ a blue star"))


def test_names_of_callers_are_no_markup() -> None:
    told = Explanation(request_id="[/red]", session_id="[b]s[/b]")
    console = Console(width=160)
    with console.capture() as capture:
        console.print(to_explained([told]))
    assert "[/red]" in capture.get() and "[b]s[/b]" in capture.get()


def test_the_script_repeats_a_picture_and_a_conversation() -> None:
    script = load_script()
    named = [name for conversation in script for turn in conversation.turns for name in turn.pictures]
    assert len(set(named)) < len(named)
    assert max(len(conversation.turns) for conversation in script) >= 3


def test_a_missing_script_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkout"):
        load_script(tmp_path)


@pytest.mark.parametrize("quiet", [False, True])
def test_the_log_has_names_in_front(tmp_path: Path, quiet: bool) -> None:
    console = Console(width=20)
    with console.capture() as capture:
        reporter = Reporter(console, quiet, tmp_path / "log")
        reporter.on_line("decode-1", "a line [longer] than the terminal is wide")
        reporter.close()
    line = "decode-1   | a line [longer] than the terminal is wide\n"
    assert capture.get() == ("" if quiet else line)
    assert (tmp_path / "log").read_text() == line
