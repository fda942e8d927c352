"""The router's HTTP side: whether it is there, and what it says of itself."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

from triptych.doctor.certificate import client_context
from triptych.doctor.finding import Finding
from triptych.tls import Tls

TIMEOUT_S = 5.0


def read_ready(address: str, tls: Tls | None) -> Mapping[str, Any] | str:
    """What `/readyz` at `host:port` says, whatever its status; a sentence when there is no such page."""
    connection = _connect(address, tls)
    try:
        connection.request("GET", "/readyz")
        said: Any = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return said if isinstance(said, dict) and "ready" in said else "another server listens there"


def _connect(address: str, tls: Tls | None) -> http.client.HTTPConnection:
    if tls is None:
        return http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=client_context(tls, "http/1.1"))


def check_ready(address: str, said: Mapping[str, Any] | str) -> Iterator[Finding]:
    """Pure: what is missing keeps answers from being given, what is degraded costs time."""
    subject = f"http {address}"
    if isinstance(said, str):
        yield Finding("ready", subject, "fix", f"no answer: {said}", "does --http name the router's HTTP port?")
        return
    for sentence in said["missing"]:
        yield Finding("ready", subject, "fix", sentence, "the log of that worker says what it waits for")
    for sentence in said["degraded"]:
        yield Finding("ready", subject, "fix", sentence, "answers are given, but this costs time")
    if said["ready"]:
        yield Finding("ready", subject, "ok", "ready")
