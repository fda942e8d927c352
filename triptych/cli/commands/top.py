"""`triptych top`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from triptych.cli.commands.options import ROUTER
from triptych.cli.door import Address, ApiKey, TlsCa, TlsCert, TlsKey, UseTls, open_door
from triptych.cli.top import run_top

app = typer.Typer(add_completion=False)


@app.command()
def top(
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="seconds between two frames")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print one frame and end")] = False,
    address: Address = ROUTER,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Show a running cluster live: workers, queue, blocks, hit rates, tokens a second, transfers."""
    run_top(open_door(address, api_key, tls, tls_ca, tls_cert, tls_key), every, once=once)
