"""How the encoder starts a Ray of its own on a machine that is busy. Ray itself is a function that fails."""

from __future__ import annotations

import subprocess
import threading

import psutil
import pytest

from services.encoder.starting import Offspring, end, patient
from triptych.errors import ConfigError


class SlowNode:
    """Is not there when it is asked for the first `late` times."""

    def __init__(self, late: int) -> None:
        self.late, self.asked = late, 0

    def get(self, address: str, node: str) -> str:
        self.asked += 1
        if self.asked <= self.late:
            raise RuntimeError
        return f"{node} at {address}"


def test_a_node_is_waited_for() -> None:
    node = SlowNode(late=2)
    assert patient(node.get, threading.Event())("here", "one") == "one at here"
    assert node.asked == 3


def test_not_for_ever() -> None:
    with pytest.raises(ConfigError, match="not up after 0 s"):
        patient(SlowNode(late=1000).get, threading.Event(), timeout_s=0)("here", "one")


def test_nor_when_nobody_wants_it_any_more() -> None:
    node, stopping = SlowNode(late=1000), threading.Event()
    stopping.set()
    with pytest.raises(ConfigError, match="stopped"):
        patient(node.get, stopping)("here", "one")
    assert node.asked == 1


def test_what_was_started_since_is_ended() -> None:
    offspring = Offspring()
    with subprocess.Popen(["sleep", "600"]) as process:
        end(offspring.living())
        assert not psutil.pid_exists(process.pid)


def test_older_processes_are_nobodys_offspring() -> None:
    with subprocess.Popen(["sleep", "600"]) as older:
        assert Offspring().living() == set()
        older.kill()
