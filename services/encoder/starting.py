"""Starts Ray's processes again when they are not up in time, and ends what they leave behind. Imports no Ray."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

import psutil

log = logging.getLogger(__name__)
STARTS, TOO_LATE = 4, "timed out during startup"
END_TIMEOUT_S = 10.0


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


def repeat_if_late(start: Callable[[], None], undo: Callable[[], None], stopping: threading.Event) -> None:
    """Start Ray up to `STARTS` times.

    A node gives up when its agents are not up after 15 s, a figure in its code, and on a busy machine they may need
    longer. Not once `stopping` is set: whoever waits for the end would wait for another start.
    """
    for _ in range(STARTS - 1):
        try:
            return start()
        except Exception as exc:
            if TOO_LATE not in str(exc) or stopping.is_set():
                raise
            log.warning("Ray was not up in time and is started again")
            undo()
    return start()
