"""Looks at everything in turn; what a look means is decided in the modules beside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from triptych.channel import open_blocking_channel
from triptych.client import Client
from triptych.doctor.certificate import check_certificate, shake_hands
from triptych.doctor.clocks import check_clocks
from triptych.doctor.finding import Finding
from triptych.doctor.memory import check_redis, check_shared_memory
from triptych.doctor.pages import check_ready, read_ready
from triptych.doctor.picture import ask_twice, check_picture
from triptych.doctor.workers import check_checkpoints, check_reach, check_versions, name_of
from triptych.errors import PermissionDeniedError, TriptychError, UnauthenticatedError
from triptych.retry import Retry
from triptych.status import rpc_errors
from triptych.tls import Tls
from triptych.v1.router_pb2 import WatchClusterResponse
from triptych.v1.types_pb2 import Usage
from triptych.v1.worker_pb2 import GetInfoRequest, WorkerInfo
from triptych.v1.worker_pb2_grpc import WorkerServiceStub

TIMEOUT_S = 5.0
NOT_ALLOWED = Finding(
    "reach",
    "workers",
    "skipped",
    "this key may not watch the cluster",
    "use the key of a tenant with operator = true",
)


@dataclass(frozen=True)
class Site:
    """Where to look: the router's two addresses, how to get in, and what else can be reached from here.

    `http` is host:port or an URL.
    """

    address: str
    http: str
    api_key: str | None = None
    tls: Tls | None = None
    redis: str | None = None
    inside: bool = False


def examine(site: Site) -> Iterator[Finding]:
    """All findings, in the order of looking. ConfigError when a file of `site.tls` is not usable."""
    if site.tls is not None:
        yield from check_certificate(f"router {site.address}", shake_hands(site.address, site.tls), time.time())
    yield from check_ready(site.http, read_ready(site.http, site.tls))
    with Client(site.address, api_key=site.api_key, tls=site.tls, retry=Retry(tries=2)) as client:
        door = _knock(client, site)
        yield door
        now = None
        if door.level == "ok":
            asked = time.time()
            now, trouble = _snapshot(client)
            yield from _cluster(now, asked, site) if now else trouble
        yield from _redis(site.redis, now)
        if door.level == "ok":
            yield from check_picture(_ask(client))


def _knock(client: Client, site: Site) -> Finding:
    subject = f"grpc {site.address}"
    try:
        models = client.list_models()
    except UnauthenticatedError as error:
        return Finding("reach", subject, "fix", error.message, "--api-key, or TRIPTYCH_API_KEY")
    except TriptychError as error:
        fix = "does the router run, is this its gRPC port, and does it want --tls-ca?"
        return Finding("reach", subject, "unreachable", error.message, fix)
    return Finding("reach", subject, "ok", f"serves {', '.join(model.name for model in models)}")


def _snapshot(client: Client) -> tuple[WatchClusterResponse | None, list[Finding]]:
    """The cluster, or what keeps the router from showing it."""
    try:
        with closing(client.watch_cluster()) as snapshots:
            return next(snapshots), []
    except PermissionDeniedError:
        return None, [NOT_ALLOWED]
    except TriptychError as error:
        fix = "does the router still run, and does everything before it let streams through?"
        return None, [Finding("reach", "workers", "fix", error.message, fix)]


def _cluster(now: WatchClusterResponse, asked_unix_s: float, site: Site) -> Iterator[Finding]:
    yield from check_clocks(now, asked_unix_s, time.time())
    yield from check_reach(now)
    yield from check_versions(now)
    yield from check_checkpoints(now)
    yield from check_shared_memory(now)
    if site.inside:
        for address, info in {worker.info.address: worker.info for worker in now.workers}.items():
            yield _visit(info, site.tls)
            if site.tls is not None:
                yield from check_certificate(name_of(info), shake_hands(address, site.tls), time.time())


def _visit(info: WorkerInfo, tls: Tls | None) -> Finding:
    """Ask a worker itself, as the other services do."""
    try:
        with open_blocking_channel(info.address, tls) as channel, rpc_errors(info.address):
            WorkerServiceStub(channel).GetInfo(GetInfoRequest(), timeout=TIMEOUT_S)
    except TriptychError as error:
        fix = "name resolution and network policies between this machine and the worker"
        return Finding("reach", name_of(info), "fix", f"does not answer from here: {error.message}", fix)
    return Finding("reach", name_of(info), "ok", "answers from here")


def _redis(url: str | None, now: WatchClusterResponse | None) -> Iterator[Finding]:
    if url is None:
        yield Finding("redis", "Redis", "skipped", "not looked at", "name it with --redis")
        return
    # The password must not stand in the list of processes.
    command = [sys.executable, "-P", "-m", "common.store.condition"]
    done = subprocess.run(command, input=url, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        fix = "does it run, and are address, password and TLS right? Answers with pictures are slower without it"
        yield Finding("redis", "Redis", "fix", last, fix)
    else:
        yield from check_redis(json.loads(done.stdout), now)


def _ask(client: Client) -> tuple[Usage, Usage] | TriptychError:
    try:
        return ask_twice(client)
    except TriptychError as error:
        return error
