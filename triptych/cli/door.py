"""How commands reach a router: address, API key and certificates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from triptych.client import Client
from triptych.tls import Tls, chosen_tls

Address = Annotated[str, typer.Option(help="host:port of a router")]
ApiKey = Annotated[str | None, typer.Option(help="where the router asks for one", envvar="TRIPTYCH_API_KEY")]
UseTls = Annotated[bool, typer.Option("--tls", help="encrypt; implied by the next three", envvar="TRIPTYCH_TLS")]
TlsCa = Annotated[Path | None, typer.Option(help="PEM file of CAs; unset: public ones", envvar="TRIPTYCH_TLS_CA")]
TlsCert = Annotated[Path | None, typer.Option(help="own certificate, for mutual TLS", envvar="TRIPTYCH_TLS_CERT")]
TlsKey = Annotated[Path | None, typer.Option(help="its private key", envvar="TRIPTYCH_TLS_KEY")]


@dataclass(frozen=True)
class Door:
    """One router and what it takes to get in."""

    address: str
    api_key: str | None = None
    tls: Tls | None = None

    def client(self) -> Client:
        """A connection; ConfigError when a certificate is not usable."""
        return Client(self.address, api_key=self.api_key, tls=self.tls)


def open_door(
    address: str, api_key: str | None, use_tls: bool, ca: Path | None, cert: Path | None, key: Path | None
) -> Door:
    """From the options of a command; empty ones count as unset."""
    return Door(address, api_key or None, chosen_tls(use_tls, ca, cert, key))
