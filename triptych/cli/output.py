"""What a running cluster looks like in a terminal: coloured log lines, parts coming up, addresses."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from triptych.cli.failure import print_error, unwritable
from triptych.cli.plan import Part
from triptych.errors import TriptychError

COLOURS = {"valkey": "red", "encoder": "magenta", "prefill": "cyan", "decode": "blue", "router": "green"}
NAME_WIDTH = 10


class Reporter:
    """Prints whole lines from several threads; `quiet` leaves the parts' own log out, `log` gets a plain copy of it."""

    def __init__(self, console: Console, quiet: bool = False, log: Path | None = None) -> None:
        self._console, self._quiet = console, quiet
        self._lock = threading.Lock()
        self._file = _opened(log) if log else None

    def on_line(self, name: str, line: str) -> None:
        """One log line of a part; lost when it cannot be written, since the part must be read from in any case."""
        with self._lock, suppress(OSError, SystemExit):
            if self._file:
                print(f"{name:<{NAME_WIDTH}} | {line}", file=self._file, flush=True)
            if not self._quiet:
                self._print(Text.assemble((f"{name:<{NAME_WIDTH}} | ", _colour(name)), line))

    def on_ready(self, part: Part, seconds: float) -> None:
        """A part came up."""
        self.say(Text.assemble((f"{part.name:<{NAME_WIDTH}} ", _colour(part.name)), f"ready in {seconds:4.1f} s"))

    def say(self, text: str | Text) -> None:
        """A line of our own."""
        with self._lock:
            self._print(Text(text) if isinstance(text, str) else text)

    def fail(self, error: TriptychError) -> None:
        """What went wrong, on stderr as every error of the command."""
        with self._lock:
            print_error(error)

    def close(self) -> None:
        """Close the copy of the log."""
        if self._file:
            self._file.close()

    def _print(self, text: Text) -> None:
        # One log line is one line, however narrow the terminal.
        self._console.print(text, soft_wrap=True, highlight=False)


def _opened(log: Path) -> TextIO:
    try:
        return log.open("w", encoding="utf-8")
    except OSError as error:
        raise unwritable(error) from error


def _colour(name: str) -> str:
    return COLOURS.get(name.partition("-")[0], "white")
