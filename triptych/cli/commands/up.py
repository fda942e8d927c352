"""`triptych up`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triptych.cli.commands.options import Model
from triptych.cli.plan import ClusterOptions, Dtype, LogLevel, Topology, default_model
from triptych.cli.up import run_up

app = typer.Typer(add_completion=False)
Count = typer.Option(min=1, help="how many of them")
Port = typer.Option(min=0, max=65535, help="0 picks a free one")


@app.command()
def up(
    model: Model = None,
    prefill: Annotated[int, Count] = 1,
    decode: Annotated[int, Count] = 1,
    encoders: Annotated[int, Count] = 1,
    redis: Annotated[str | None, typer.Option(help="redis:// URL to use instead of an embedded Valkey")] = None,
    grpc_port: Annotated[int, Port] = 50051,
    http_port: Annotated[int, Port] = 8000,
    dtype: Annotated[Dtype, typer.Option(help="element type of weights and KV")] = "float32",
    topology: Annotated[Topology, typer.Option(help="stages apart, prefill with decode, or all in one")] = "e-p-d",
    log_level: Annotated[LogLevel, typer.Option(help="least level logged")] = "INFO",
    quiet: Annotated[bool, typer.Option("--quiet", help="leave out the log of the parts")] = False,
    log: Annotated[
        Path | None, typer.Option(help="file for a plain copy of the log", dir_okay=False, writable=True)
    ] = None,
) -> None:
    """Start a whole cluster on this machine and keep it running until Ctrl-C."""
    path = model or default_model()
    options = ClusterOptions(
        path, prefill, decode, encoders, redis, grpc_port, http_port, dtype, topology, log_level=log_level
    )
    run_up(options, quiet, log)
