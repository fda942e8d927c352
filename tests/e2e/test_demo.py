"""`triptych demo` answers every question of its script rightly, and says what was reused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.demo_accuracy import compare
from tests.e2e.up_process import START_TIMEOUT_S, run_command
from triptych.cli.cluster import LocalCluster
from triptych.cli.demo import Outcome, ask
from triptych.cli.plan import ClusterOptions, default_model
from triptych.cli.script import load_script
from triptych.client import Client

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalCluster(ClusterOptions(default_model())) as cluster, Client(cluster.grpc_address) as opened:
        yield opened


@pytest.fixture(scope="module")
def outcomes(client: Client) -> list[Outcome]:
    return [outcome for conversation in load_script() for outcome in ask(client, conversation)]


def test_the_command_succeeds_and_shows_every_question() -> None:
    with run_command("demo") as command:
        status = command.wait(START_TIMEOUT_S)
    output = "\n".join(command.lines)
    assert status == 0, output
    assert all(turn.text in output for conversation in load_script() for turn in conversation.turns)


def test_every_answer_is_right(outcomes: list[Outcome]) -> None:
    wrong = [(outcome.turn.text, outcome.answer.text) for outcome in outcomes if not outcome.right]
    assert wrong == []


def test_each_picture_is_encoded_once(outcomes: list[Outcome]) -> None:
    usages = [outcome.answer.usage for outcome in outcomes]
    # Four distinct pictures in five files: number.png and number.bmp show the same pixels.
    assert sum(usage.embedding_misses for usage in usages) == 4


def test_every_picture_is_either_encoded_or_reused(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        usage = outcome.answer.usage
        assert usage.embedding_hits + usage.embedding_misses == usage.unique_images


def test_held_out_questions(client: Client) -> None:
    """Right about scenes that the model never saw, and word for word what transformers says."""
    found = compare(client, default_model(), count=60, seed=7)
    assert [(item.kind, ours, theirs) for item, ours, theirs in found.different] == []
    # 600 questions decide (benchmarks/demo_accuracy.py); 60 only show that nothing is broken.
    assert found.cluster.shares()["all"] >= 0.8
