"""What goes wrong with the `triptych` command is one line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.sdk_router import FakeRouter, serve_router
from triptych.cli import INTERRUPTED, main
from triptych.cli.child import Child
from triptych.cli.plan import default_model

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command with these arguments: its exit status, and what it wrote to stderr."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["triptych", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0), capsys.readouterr().err

    return run


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        pytest.fail("a part was started")

    monkeypatch.setattr(Child, "__init__", refuse)


@pytest.mark.usefixtures("nothing_starts")
def test_a_log_that_cannot_be_written(run: Run) -> None:
    assert run("up", "--log", "/nowhere/log") == (1, "error: /nowhere/log: No such file or directory\n")


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("flag", ["--grpc-port", "--http-port"])
def test_a_taken_port_is_named_before_anything_starts(run: Run, flag: str) -> None:
    free = {"--grpc-port": "0", "--http-port": "0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = [word for pair in (free | {flag: str(port)}).items() for word in pair]
        status, said = run("up", "--model", str(default_model()), *given)
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith(f"error: port {port} cannot be had (Address already in use): choose another with {flag}")


@pytest.mark.usefixtures("nothing_starts")
def test_one_port_for_both_interfaces(run: Run) -> None:
    status, said = run("up", "--grpc-port", "9000", "--http-port", "9000")
    assert (status, said) == (1, "error: gRPC and HTTP cannot share port 9000\n")


def test_an_answer_that_cannot_be_written(run: Run) -> None:
    with serve_router(FakeRouter()) as address, open("/dev/full", "w") as full, redirect_stdout(full):
        assert run("chat", "What?", "--address", address) == (1, "error: No space left on device\n")


def test_a_line_that_is_still_buffered_at_the_end(run: Run) -> None:
    with open("/dev/full", "w") as full, redirect_stdout(full):
        assert run("version") == (1, "error: No space left on device\n")


@pytest.mark.parametrize("levels", [200, 100_000])
def test_requests_nested_without_end(run: Run, tmp_path: Path, levels: int) -> None:
    (tmp_path / "deep.json").write_text(
        '{"messages": [{"role": "user", "content": %s}]}' % ("[" * levels + "]" * levels)
    )
    status, said = run("lint-prompt", str(tmp_path / "deep.json"))
    assert status == 1 and said.startswith("error: ") and said.count("\n") == 1


def test_text_that_is_nested_json_is_only_text(run: Run, tmp_path: Path) -> None:
    systems = [{"role": "system", "content": "[" * 100_000 + end} for end in "xy"]
    log = [json.dumps({"messages": [system, {"role": "user", "content": "And now?"}]}) for system in systems]
    (tmp_path / "log.jsonl").write_text("\n".join(log))
    assert run("lint-prompt", str(tmp_path / "log.jsonl")) == (1, ""), "the instructions differ, and that is found"


def test_a_picture_given_as_requests(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    assert run("lint-prompt", str(tmp_path / "a.png")) == (
        1,
        f"error: cannot read {tmp_path / 'a.png'}: it is no text\n",
    )


def test_ctrl_c_while_the_command_is_loaded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "triptych.cli.app", Interrupted("triptych.cli.app"))
    assert run("explain") == (INTERRUPTED, "")
