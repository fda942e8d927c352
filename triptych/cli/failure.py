"""How a command says what went wrong."""

from __future__ import annotations

import os
import sys

from triptych.errors import ConfigError, TriptychError


def print_error(error: TriptychError) -> None:
    """One sentence on stderr."""
    label = "\033[1;31merror:\033[0m" if sys.stderr.isatty() else "error:"
    print(label, error.message, file=sys.stderr)  # noqa: T201


def unwritable(error: OSError) -> ConfigError:
    """Of a file, a pipe or a terminal that does not take what the command has to say."""
    reason = error.strerror or str(error)
    return ConfigError(f"{error.filename}: {reason}" if error.filename else reason)


def drop_output() -> None:
    """Forget what is buffered for standard output: Python would try again at its end, and complain at length."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
