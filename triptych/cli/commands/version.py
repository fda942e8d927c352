"""`triptych version`."""

from __future__ import annotations

import typer

from triptych.version import VERSION

app = typer.Typer(add_completion=False)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(VERSION)
