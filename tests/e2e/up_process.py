"""The `triptych` command as a process of its own, read line by line."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

START_TIMEOUT_S = 330.0
STOP_TIMEOUT_S = 60.0


class Command:
    """A running `triptych ...`; `lines` are what it has printed so far."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "triptych", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, text: str) -> str:
        """The first line from here on that contains `text`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            line = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, "\n".join(self.lines)
            if text in line:
                return line

    def children(self) -> list[psutil.Process]:
        """Everything that it started, at any depth."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and wait for the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit status."""
        status = self.process.wait(timeout_s)
        self._reader.join()
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line.rstrip())
                self._arrived.put(line.rstrip())
        self._arrived.put(None)


@contextmanager
def run_command(*arguments: str) -> Iterator[Command]:
    """The command, interrupted at the end unless it has ended."""
    command = Command(*arguments)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.stop(signal.SIGTERM)
