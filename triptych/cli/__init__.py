"""The `triptych` command."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from triptych.cli.app import app
from triptych.errors import TriptychError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command; a failure of ours is one sentence on stderr and exit status 1."""
    try:
        app()
    except TriptychError as error:
        Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), error.message))
        sys.exit(1)
