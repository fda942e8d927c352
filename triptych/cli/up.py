"""`triptych up`: run a cluster in the foreground until a signal, or until one of its parts ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import typer
from rich.console import Console

from triptych.cli.cluster import LocalCluster
from triptych.cli.output import Reporter
from triptych.cli.plan import ClusterOptions
from triptych.errors import TriptychError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# More than `--drain-grace-s` of the router, after which streams are told why they end.
GRACE_S = 40.0


@contextmanager
def interrupted_by_signals(cluster: LocalCluster) -> Iterator[None]:
    """While inside, Ctrl-C, SIGTERM and a closed terminal interrupt the cluster and raise nothing."""
    # nohup ignores SIGHUP on purpose.
    hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    before = {number: signal.signal(number, lambda *_: cluster.interrupt()) for number in (*SIGNALS, *hangup)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def running(cluster: LocalCluster, reporter: Reporter) -> Iterator[bool]:
    """The cluster, started; False when a signal came first. What goes wrong is said at once, before everything stops.

    Raises typer.Exit with status 1 after a failure.
    """
    with interrupted_by_signals(cluster):
        try:
            cluster.start()
            yield cluster.wait_ready()
        except TriptychError as error:
            reporter.fail(error)
            raise typer.Exit(1) from error
        finally:
            try:
                reporter.say("stopping")
            finally:
                cluster.stop()


def run_up(options: ClusterOptions, quiet: bool, log: Path | None) -> None:
    """Start, say where it listens, keep running; ends with status 1 when a part ends by itself."""
    with closing(Reporter(Console(), quiet, log)) as reporter:
        cluster = LocalCluster(options, reporter.on_line, reporter.on_ready, GRACE_S)
        with running(cluster, reporter) as ready:
            if ready:
                _announce(cluster, reporter)
                cluster.watch()


def _announce(cluster: LocalCluster, reporter: Reporter) -> None:
    reporter.say(f"gRPC    {cluster.grpc_address}")
    reporter.say(f"OpenAI  {cluster.http_url}/v1")
    reporter.say(f"console {cluster.http_url}/")
    reporter.say("ready; Ctrl-C stops everything")
