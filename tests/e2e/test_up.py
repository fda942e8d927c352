"""`triptych up` with the demo model: ready, answering on both interfaces, gone after a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from tests.e2e.up_process import START_TIMEOUT_S, Command, run_command
from triptych import Client, Image
from triptych.cli.plan import default_model
from triptych.cli.script import FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
QUESTION = "What shape is red?"


@pytest.fixture
def running() -> Iterator[Command]:
    with run_command("up", "--quiet", "--grpc-port", "0", "--http-port", "0") as command:
        yield command


def test_answers_on_both_interfaces_and_stops_on_sigterm(running: Command) -> None:
    address, url = running.wait_for("gRPC").split()[-1], running.wait_for("OpenAI").split()[-1]
    running.wait_for("ready; Ctrl-C")
    with Client(address) as client:
        answer = client.generate([Image.from_file(FOLDER / "shapes.png"), QUESTION], temperature=0.0).answer()
    assert answer.text.strip() == "star"
    assert by_openai(url) == "I am the Triptych demo model."
    assert_stops(running, signal.SIGTERM)


def by_openai(url: str) -> str | None:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        who = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Who are you?"}], temperature=0
        )
    return who.choices[0].message.content


def test_ctrl_c_while_starting_leaves_nothing(running: Command) -> None:
    running.wait_for("ready in")
    assert_stops(running, signal.SIGINT)


def test_a_part_that_cannot_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    for file in default_model().iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    with run_command("up", "--quiet", "--model", str(tmp_path), "--grpc-port", "0", "--http-port", "0") as command:
        assert command.wait(START_TIMEOUT_S) == 1
    output = "\n".join(command.lines)
    assert "router ended with status 1" in output and "error: " in output and "Traceback" not in output


def assert_stops(running: Command, number: signal.Signals) -> None:
    """Exit status 0, and not one descendant left."""
    descendants = running.children()
    assert len(descendants) >= 5
    assert running.stop(number) == 0
    assert psutil.wait_procs(descendants, timeout=5)[1] == []
