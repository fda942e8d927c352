"""`triptych lint-prompt`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from triptych.cli.door import ApiKey, TlsCa, TlsCert, TlsKey, UseTls, open_door
from triptych.cli.lint import run_lint

app = typer.Typer(add_completion=False)


@app.command()
def lint_prompt(
    source: Annotated[
        str, typer.Argument(help="OpenAI request as JSON, or several in order, one a line; - is standard input")
    ],
    address: Annotated[str | None, typer.Option(help="host:port of a router that counts the tokens lost")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="all findings as JSON")] = False,
    api_key: ApiKey = None,
    tls: UseTls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Name what in requests would break the prefix cache; ends with status 1 when there is something."""
    door = open_door(address, api_key, tls, tls_ca, tls_cert, tls_key) if address else None
    run_lint(source, door, as_json=as_json)
