"""`triptych demo`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from triptych.cli.commands.options import Model
from triptych.cli.demo import run_demo
from triptych.cli.plan import default_model

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    model: Model = None, verbose: Annotated[bool, typer.Option("--verbose", help="show the log of the parts")] = False
) -> None:
    """Start a cluster, ask it about several pictures, and show what was encoded and what was reused."""
    run_demo(model or default_model(), quiet=not verbose)
