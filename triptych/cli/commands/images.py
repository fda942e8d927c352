"""`triptych images`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from triptych.cli.commands.options import ROUTER, Salt
from triptych.cli.door import Address, ApiKey, TlsCa, TlsCert, TlsKey, UseTls, open_door
from triptych.cli.images import run_images

app = typer.Typer(add_completion=False)


@app.command()
def images(
    address: Address = ROUTER,
    cache_salt: Salt = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """List the pictures that a running cluster knows, and those that look the same but were encoded apart."""
    run_images(open_door(address, api_key, tls, tls_ca, tls_cert, tls_key), cache_salt, as_json=as_json)
