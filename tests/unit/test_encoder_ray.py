"""How the encoder starts a Ray of its own on a machine that is busy. Ray itself is a function that fails."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest

from services.encoder.starting import STARTS, TOO_LATE, Offspring, end, repeat_if_late
from triptych.errors import InternalError


class SlowRay:
    """Fails `late` times with `sentence`, each time with a process left behind."""

    def __init__(self) -> None:
        self.late, self.sentence = 0, f"The node {TOO_LATE}."
        self.starts = 0
        self.left: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.starts += 1
        if self.starts <= self.late:
            self.left.append(subprocess.Popen(["sleep", "600"]))
            raise InternalError(self.sentence)


@pytest.fixture
def ray() -> Iterator[SlowRay]:
    slow = SlowRay()
    yield slow
    for process in slow.left:
        process.kill()
        process.wait()


def test_a_start_that_took_too_long_is_repeated(ray: SlowRay) -> None:
    ray.late = STARTS - 1
    offspring = Offspring()
    repeat_if_late(ray.start, lambda: end(offspring.living()), threading.Event())
    assert ray.starts == STARTS and None not in [process.poll() for process in ray.left]


@pytest.mark.parametrize(("sentence", "starts"), [(f"It {TOO_LATE}.", STARTS), ("No such option.", 1)])
def test_it_is_not_repeated_for_ever_nor_for_another_reason(ray: SlowRay, sentence: str, starts: int) -> None:
    ray.late, ray.sentence = STARTS, sentence
    with pytest.raises(InternalError, match=sentence):
        repeat_if_late(ray.start, lambda: None, threading.Event())
    assert ray.starts == starts


def test_it_is_not_repeated_when_nobody_waits_for_it_any_more(ray: SlowRay) -> None:
    ray.late, stopping = STARTS, threading.Event()
    stopping.set()
    with pytest.raises(InternalError, match=TOO_LATE):
        repeat_if_late(ray.start, lambda: None, stopping)
    assert ray.starts == 1


def test_older_processes_are_nobodys_offspring() -> None:
    with subprocess.Popen(["sleep", "600"]) as older:
        assert Offspring().living() == set()
        older.kill()
