"""`triptych keys`: its sub-commands."""

from __future__ import annotations

import typer

from triptych.cli.keys import run_new_key

app = typer.Typer(no_args_is_help=True, add_completion=False, help="API keys for a router's keys file.")


# Without it a group of one command would be that command.
@app.callback()
def _keys() -> None: ...


@app.command("new")
def new_key(tenant: str) -> None:
    """Make an API key; append the output to the router's keys file with >>."""
    run_new_key(tenant)
