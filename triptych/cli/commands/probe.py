"""`triptych probe` among the other sub-commands; its options are where it is."""

from __future__ import annotations

import typer

from triptych.cli.probe import run_probe

app = typer.Typer(add_completion=False)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
def probe(context: typer.Context) -> None:
    """Exit with 0 when a service is healthy: the health check of containers."""
    run_probe(context.args)
