"""The router's HTTP side: whether it is there, and what it says of itself."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from triptych.doctor.certificate import client_context
from triptych.doctor.finding import Finding
from triptych.tls import Tls

TIMEOUT_S = 5.0


def read_ready(address: str, tls: Tls | None) -> Mapping[str, Any] | str:
    """What `/readyz` at `host:port` or an URL says, whatever its status; a sentence when there is no such page."""
    try:
        with closing(_connect(address, tls)) as connection:
            connection.request("GET", "/readyz")
            said: Any = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    return said if isinstance(said, dict) and "ready" in said else "another server listens there"


def _connect(address: str, tls: Tls | None) -> http.client.HTTPConnection:
    url = urlsplit(address if "://" in address else f"//{address}", "http" if tls is None else "https")
    if url.scheme == "http":
        return http.client.HTTPConnection(url.netloc, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(url.netloc, timeout=TIMEOUT_S, context=client_context(tls or Tls(), "http/1.1"))


def check_ready(address: str, said: Mapping[str, Any] | str) -> Iterator[Finding]:
    """Pure: what is missing keeps answers from being given, what is degraded costs time."""
    subject = address if "://" in address else f"http {address}"
    if isinstance(said, str):
        yield Finding("ready", subject, "fix", f"no answer: {said}", "does --http name the router's HTTP port?")
        return
    for sentence in said["missing"]:
        yield Finding("ready", subject, "fix", sentence, "the log of that worker says what it waits for")
    for sentence in said["degraded"]:
        yield Finding("ready", subject, "fix", sentence, "answers are given, but this costs time")
    if said["ready"]:
        yield Finding("ready", subject, "ok", "ready")
