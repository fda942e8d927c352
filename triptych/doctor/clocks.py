"""Whether the clocks agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from triptych.doctor.finding import Finding
from triptych.doctor.workers import name_of
from triptych.v1.router_pb2 import WatchClusterResponse

LIMIT_S = 2.0
# A router counts a worker as lost when it has been silent for longer.
AGE_S = 5.0
FIX = "let every machine follow one time server: certificates and traces depend on it"


def check_clocks(now: WatchClusterResponse, asked_unix_s: float, got_unix_s: float) -> Iterator[Finding]:
    """The router against this machine, which asked and got `now` at those times; each worker against the router."""
    at = now.at_unix_ms / 1000
    ahead = at - got_unix_s if at > got_unix_s else min(0.0, at - asked_unix_s)
    yield _judge("router", ahead, "this machine", LIMIT_S)
    for worker in now.workers:
        if worker.load.at_unix_ms:
            ahead = worker.load.at_unix_ms / 1000 - at
            yield _judge(name_of(worker.info), ahead, "the router", LIMIT_S + (AGE_S if ahead < 0 else 0))


def _judge(subject: str, ahead_s: float, of: str, limit_s: float) -> Finding:
    if abs(ahead_s) <= limit_s:
        return Finding("clock", subject, "ok", f"agrees with {of}")
    way = "ahead of" if ahead_s > 0 else "behind"
    return Finding("clock", subject, "fix", f"is {abs(ahead_s):.0f} s {way} {of}", FIX)
