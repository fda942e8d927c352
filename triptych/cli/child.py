"""One child process: its log lines, and its end together with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from triptych.cli.plan import Part

TAIL_LINES = 40
OnLine = Callable[[str, str], None]


def session_members(session: int) -> list[int]:
    """Ids of the live processes of a session, so also of grandchildren whose parents are gone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything; after it: state, parent, group, session.
            state, _, _, its_session = path.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


class Child:
    """Runs one part in a session of its own, so that Ctrl-C reaches only us and we can stop all of it."""

    def __init__(self, part: Part, on_line: OnLine) -> None:
        self.part = part
        self.started_at = time.monotonic()
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._process = subprocess.Popen(
            part.command,
            env=os.environ | part.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._pump = threading.Thread(target=self._read_lines, name=f"log of {part.name}", daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        """Process id, also the id of its session."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll()

    def tail(self) -> list[str]:
        """Its last lines."""
        return list(self._tail)

    def ended_line(self) -> str:
        """One sentence and the last lines, for an error message."""
        self._pump.join(1.0)
        return "\n".join([f"{self.part.name} ended with status {self.status}; its last lines:", *self.tail()])

    def signal(self, number: int) -> None:
        """Send a signal to the process itself; harmless when it has ended."""
        if self.status is None:
            self._process.send_signal(number)

    def reap(self) -> None:
        """Kill whatever is left of its session and close the pipe."""
        while members := session_members(self.pid):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.01)
        self._process.wait()
        self._pump.join(1.0)

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._tail.append(line.rstrip())
                self._on_line(self.part.name, line.rstrip())
