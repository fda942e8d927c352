"""`triptych explain`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from triptych.cli.commands.options import ROUTER, Salt
from triptych.cli.door import Address, ApiKey, TlsCa, TlsCert, TlsKey, UseTls, open_door
from triptych.cli.explain import run_explain

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    last: Annotated[int, typer.Option(min=1, max=512, help="how many requests")] = 20,
    session: Annotated[str, typer.Option(help="only those of this session")] = "",
    address: Address = ROUTER,
    cache_salt: Salt = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Tell what the caches did for the latest requests, and where and why their prompts diverged."""
    door = open_door(address, api_key, tls, tls_ca, tls_cert, tls_key)
    run_explain(door, last, session, cache_salt, as_json)
