"""`triptych top`: a running cluster, live in the terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from contextlib import closing

from rich.console import Console
from rich.live import Live

from triptych.cli.door import Door
from triptych.cli.frame import frame
from triptych.client import Client
from triptych.errors import UnavailableError
from triptych.v1.router_pb2 import WatchClusterResponse

WIDTH = 150
Snapshots = Generator[WatchClusterResponse, None, None]


def run_top(door: Door, every_s: float, once: bool) -> None:
    """Draw until Ctrl-C, or one frame: that of the second snapshot, since it takes two to tell rates."""
    console = Console() if Console().is_terminal else Console(width=WIDTH)
    with door.client() as client, closing(watch(client, every_s)) as snapshots:
        if once:
            console.print(frame(next(snapshots), next(snapshots)))
        else:
            _draw(console, snapshots)


def watch(client: Client, every_s: float) -> Snapshots:
    """Snapshots without an end: a router that was seen once is waited for, however long its restart takes."""
    seen = False
    while True:
        try:
            with closing(client.watch_cluster(every_s)) as snapshots:
                for snapshot in snapshots:
                    yield snapshot
                    seen = True
        except UnavailableError:
            if not seen:
                raise
        time.sleep(every_s)


def _draw(console: Console, snapshots: Snapshots) -> None:
    earlier: WatchClusterResponse | None = None
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        for now in snapshots:
            live.update(frame(earlier, now), refresh=True)
            earlier = now
