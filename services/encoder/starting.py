"""Waits for Ray's own start as long as a busy machine needs, and ends what it leaves behind. Imports no Ray."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

from triptych.errors import ConfigError

START_TIMEOUT_S, ASK_EVERY_S = 150.0, 0.2
END_TIMEOUT_S = 10.0
Answer = TypeVar("Answer")


class Offspring:
    """The processes that this one has started since."""

    def __init__(self) -> None:
        self._before = set(psutil.Process().children(recursive=True))

    def living(self) -> set[psutil.Process]:
        """All of them. Whose parent ends before it is no longer among them."""
        return set(psutil.Process().children(recursive=True)) - self._before


def end(processes: set[psutil.Process]) -> None:
    """SIGKILL; returns once they are gone. Harmless for those that are."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, END_TIMEOUT_S)


def patient(
    ask: Callable[..., Answer], stopping: threading.Event, timeout_s: float = START_TIMEOUT_S
) -> Callable[..., Answer]:
    """`ask`, which raises RuntimeError until the node is up, as a function that waits until then.

    Ray asks for half a minute, without a pause; its processes may need longer where others load models on the same
    cores. ConfigError when the node does not come up in time, or `stopping` is set meanwhile.
    """

    def wait(*node: str) -> Answer:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return ask(*node)
            except RuntimeError as exc:
                if stopping.wait(ASK_EVERY_S):
                    raise ConfigError("stopped while Ray was starting") from exc
                if time.monotonic() > deadline:
                    raise ConfigError(f"Ray's node is not up after {timeout_s:.0f} s") from exc

    return wait
