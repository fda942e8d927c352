"""The `triptych` command."""

from __future__ import annotations

import sys

from triptych.cli.app import app
from triptych.cli.output import print_error
from triptych.errors import TriptychError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command; a failure of ours is one sentence on stderr and exit status 1."""
    try:
        app()
    except TriptychError as error:
        print_error(error)
        sys.exit(1)
