"""`triptych demo` answers every question of its script rightly, and says what was reused."""

from __future__ import annotations

import re

import pytest

from tests.e2e.up_process import START_TIMEOUT_S, run_command
from triptych.cli.script import load_script

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def output() -> str:
    with run_command("demo") as command:
        status = command.wait(START_TIMEOUT_S)
    text = "\n".join(command.lines)
    assert status == 0, text
    return text


def test_every_question_is_shown_with_the_right_answer(output: str) -> None:
    asked = [turn.text for conversation in load_script() for turn in conversation.turns]
    assert [text for text in asked if f"{text} -> " not in output] == []
    assert (output.count("✓"), output.count("✗")) == (len(asked), 0)


def test_each_picture_is_encoded_once(output: str) -> None:
    # Tokens, visual tokens, encoded and reused pictures stand behind the answer.
    rows = re.findall(r"✓ +\d+ +\d+ +(\d+) +(\d+)", output)
    # Four distinct pictures in five files: number.png and number.bmp show the same pixels.
    assert sum(int(encoded) for encoded, _ in rows) == 4
    assert sum(int(reused) for _, reused in rows) == 5
