"""`triptych doctor`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from triptych.cli.commands.options import ROUTER
from triptych.cli.doctor import run_doctor
from triptych.cli.door import Address, ApiKey, TlsCa, TlsCert, TlsKey, UseTls, open_door
from triptych.doctor import Site

app = typer.Typer(add_completion=False)
HTTP_PORT = 8000


@app.command()
def doctor(
    address: Address = ROUTER,
    http: Annotated[str, typer.Option(help="its HTTP side, host:port or URL; unset: port 8000 of the same host")] = "",
    redis: Annotated[str | None, typer.Option(help="redis:// URL to look at, too", envvar="TRIPTYCH_REDIS_URL")] = None,
    inside: Annotated[bool, typer.Option("--inside", help="also ask every worker from here")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="all findings as JSON")] = False,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Examine a running deployment and say what to fix; status 1 when there is something, 2 without a router."""
    door = open_door(address, api_key, tls, tls_ca, tls_cert, tls_key)
    beside = f"{address.rpartition(':')[0]}:{HTTP_PORT}"
    run_doctor(Site(address, http or beside, door.api_key, door.tls, redis or None, inside), as_json=as_json)
