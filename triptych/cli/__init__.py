"""The `triptych` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from triptych.cli.failure import drop_output, print_error, unwritable
from triptych.errors import TriptychError

__all__ = ["main"]

# As of a process that SIGINT ended.
INTERRUPTED = 130


def main() -> None:
    """Run the command; a failure is one sentence on stderr and exit status 1, and Ctrl-C status 130 without a word."""
    try:
        _run(sys.argv[1:])
    except TriptychError as error:
        print_error(error)
        sys.exit(1)
    except OSError as error:
        drop_output()
        print_error(unwritable(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run(arguments: Sequence[str]) -> None:
    """Everything is loaded in here, where it may be interrupted."""
    try:
        if arguments[:1] == ["probe"]:
            # Health checks run all day, and loading Typer takes longer than they do.
            from triptych.cli.probe import run_probe  # noqa: PLC0415

            run_probe(arguments[1:])
        else:
            from triptych.cli.app import app  # noqa: PLC0415

            app()
    finally:
        # Not at the interpreter's end, where nobody can say in one sentence that it failed.
        sys.stdout.flush()
