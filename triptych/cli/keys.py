"""`triptych keys`: API keys for a router's keys file."""

from __future__ import annotations

import re

import typer

from triptych.errors import InvalidArgumentError
from triptych.keys import key_digest, new_key

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def run_new_key(tenant: str) -> None:
    """The key goes to stderr and is nowhere else; stdout gets the lines for the keys file, to be appended with >>."""
    if not _TENANT.fullmatch(tenant):
        raise InvalidArgumentError("a tenant's name has letters, digits, '.', '_' and '-', at most 64", param="tenant")
    key = new_key()
    typer.echo(f"the key, shown only now: {key}", err=True)
    typer.echo(f'\n[[keys]]\ntenant = "{tenant}"\nsha256 = "{key_digest(key)}"')
