"""Who asks, and until when they wait."""

from __future__ import annotations

from dataclasses import dataclass

# Requests are not authenticated: all callers are one tenant, which only their salts divide.
ANONYMOUS = ""


@dataclass(frozen=True)
class Caller:
    """`deadline` is on the event loop's clock, in seconds."""

    tenant: str
    deadline: float
