"""The certificate that a server shows, and what its handshake says about ours."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triptych.doctor.finding import Finding
from triptych.tls import Tls

TIMEOUT_S = 5.0
SOON_S = 21 * 86400
DAY_S = 86400


@dataclass(frozen=True)
class Handshake:
    """How one went: what is wrong, else whom the certificate names and when it ends (seconds since 1970)."""

    problem: str = ""
    names: tuple[str, ...] = ()
    ends_unix_s: float = 0.0


def client_context(tls: Tls, protocol: str) -> ssl.SSLContext:
    """For Python's own sockets that will speak h2 or http/1.1. ConfigError when the files are not usable."""
    tls.credentials()
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols([protocol])
    return context


def shake_hands(address: str, tls: Tls) -> Handshake:
    """Connect to `host:port` as a caller with `tls` does. ConfigError when its files are not usable."""
    host, _, port = address.rpartition(":")
    name, context = host.strip("[]"), client_context(tls, "h2")
    try:
        with (
            socket.create_connection((name, int(port)), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=name) as shaken,
        ):
            return _read(shaken)
    except ssl.SSLCertVerificationError as error:
        return Handshake(error.verify_message)
    except (OSError, ValueError) as error:
        return Handshake(getattr(error, "reason", None) or str(error))


def _read(shaken: ssl.SSLSocket) -> Handshake:
    shown: dict[str, Any] = shaken.getpeercert() or {}
    # A server that does not like our certificate hangs up only after the handshake; else HTTP/2 begins by itself.
    if not shaken.recv(1):
        return Handshake("it hangs up: it wants a certificate of ours that its CAs signed")
    names = tuple(name for _, name in shown.get("subjectAltName", ()))
    return Handshake(names=names, ends_unix_s=ssl.cert_time_to_seconds(shown["notAfter"]))


def check_certificate(subject: str, shaken: Handshake, now_unix_s: float) -> Iterator[Finding]:
    """What to do about a handshake; pure."""
    if shaken.problem:
        fix = "--tls-ca, the names in the certificate, its dates, and --tls-cert where one is asked for"
        yield Finding("tls", subject, "fix", f"no connection: {shaken.problem}", fix)
        return
    days = int((shaken.ends_unix_s - now_unix_s) // DAY_S)
    text = f"certificate of {', '.join(shaken.names)} ends in {days} days"
    if shaken.ends_unix_s - now_unix_s < SOON_S:
        yield Finding("tls", subject, "fix", text, "renew it, and restart one process after the other")
    else:
        yield Finding("tls", subject, "ok", text)
