"""Starting, watching and stopping child processes, with small scripts in place of the services."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import FileIO, TextIOWrapper
from pathlib import Path

import pytest
import typer
from rich.console import Console

from triptych.cli.child import Child, session_members
from triptych.cli.cluster import MAX_RESTARTS, LocalCluster
from triptych.cli.output import Reporter
from triptych.cli.plan import ClusterOptions, Kind, Part
from triptych.cli.probe import free_port
from triptych.cli.up import running
from triptych.errors import ConfigError, TriptychError, UnavailableError

LISTEN = "import socket; s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True); "
FOREVER = "import time; time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); " + FOREVER
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {FOREVER!r}]); print('forked', flush=True)"


def script(name: str, code: str, kind: Kind = "valkey") -> Part:
    """A part of the kind that is ready as soon as its port listens."""
    port = free_port()
    return Part(name, kind, [sys.executable, "-c", code.replace("{port}", str(port))], port)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.reap()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    (tmp_path / "config.json").write_text("{}")
    made = LocalCluster(ClusterOptions(tmp_path), grace_s=0.2)
    yield made
    made.stop()


def test_a_plan_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError):
        LocalCluster(ClusterOptions(tmp_path / "nowhere"))
    assert list(tmp_path.iterdir()) == []


def started(children: list[Child], code: str, says: str) -> Child:
    child = Child(script("part", code), lambda *_: None)
    children.append(child)
    until(lambda: says in child.tail())
    return child


def test_lines_arrive_under_the_parts_name(children: list[Child]) -> None:
    lines: list[tuple[str, str]] = []
    children.append(Child(script("part", "print('one'); print('two')"), lambda *line: lines.append(line)))
    until(lambda: len(lines) == 2)
    assert lines == [("part", "one"), ("part", "two")]


def test_the_tail_keeps_only_the_last_lines(children: list[Child]) -> None:
    child = started(children, "for i in range(100): print(i)", "99")
    assert child.tail()[0] == "60"


def test_reap_kills_what_ignores_signals(children: list[Child]) -> None:
    child = started(children, STUBBORN, "deaf")
    child.reap()
    assert child.status == -signal.SIGKILL


def test_reap_kills_orphaned_grandchildren(children: list[Child]) -> None:
    child = started(children, PARENT, "forked")
    until(lambda: child.status is not None)
    assert len(session_members(child.pid)) == 1
    child.reap()
    assert session_members(child.pid) == []


def test_parts_come_up_with_their_times(cluster: LocalCluster) -> None:
    ready: list[str] = []
    cluster._on_ready = lambda part, seconds: ready.append(part.name)
    cluster.parts = [script("a", LISTEN + FOREVER), script("b", LISTEN + FOREVER)]
    with cluster:
        assert sorted(ready) == ["a", "b"]


def test_a_part_that_ends_early_fails_the_start(cluster: LocalCluster) -> None:
    cluster.parts = [script("good", LISTEN + FOREVER), script("bad", "print('my last words'); raise SystemExit(3)")]
    with pytest.raises(UnavailableError, match=r"bad ended with status 3(.|\n)*my last words"), cluster:
        pass
    assert cluster.children == {}


def test_a_part_that_never_listens_runs_out_of_time(cluster: LocalCluster) -> None:
    cluster.parts = [script("silent", FOREVER)]
    cluster.start()
    with pytest.raises(UnavailableError, match="silent"):
        cluster.wait_ready(timeout_s=0.2)


def test_a_part_that_ends_later_is_noticed(cluster: LocalCluster) -> None:
    cluster.parts = [script("short", LISTEN + "import time; time.sleep(1)")]
    with pytest.raises(UnavailableError, match="short ended with status 0"), cluster:
        cluster.watch()


def test_a_worker_that_ends_is_started_again_but_not_for_ever(cluster: LocalCluster) -> None:
    lines: list[str] = []
    cluster._on_line = lambda name, line: lines.append(f"{name} {line}")
    cluster.parts = [replace(script("decode-1", "raise SystemExit(3)"), kind="decode")]
    cluster.start()
    with pytest.raises(UnavailableError, match="decode-1 ended with status 3"):
        cluster.watch()
    cluster.stop()
    assert lines == ["decode-1 ended with status 3; it is started again"] * MAX_RESTARTS


def test_an_interrupt_ends_the_watch(cluster: LocalCluster) -> None:
    cluster.parts = [script("a", LISTEN + FOREVER)]
    with cluster:
        threading.Timer(0.1, cluster.interrupt).start()
        cluster.watch()
    assert cluster.children == {}


def test_an_interrupt_ends_the_start(cluster: LocalCluster) -> None:
    cluster.parts = [script("silent", FOREVER)]
    cluster.start()
    cluster.interrupt()
    assert not cluster.wait_ready()


def test_the_router_is_stopped_before_the_store(cluster: LocalCluster) -> None:
    ends: list[str] = []
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('end'))); " + LISTEN + FOREVER
    cluster._on_line = lambda name, line: ends.append(name) if line == "end" else None
    cluster._grace_s = 10.0
    cluster.parts = [script("store", code), script("front", code, "router")]
    cluster.start()
    until(lambda: all("up" in child.tail() for child in cluster.children.values()))
    cluster.stop()
    assert ends == ["front", "store"]


def test_the_directory_is_removed(cluster: LocalCluster) -> None:
    cluster.stop()
    assert not cluster._directory.exists()


def test_the_cause_of_a_failed_start_is_said_before_anything_is_stopped(cluster: LocalCluster) -> None:
    cluster.parts = [script("good", LISTEN + FOREVER), script("bad", "raise SystemExit(3)")]
    said: list[tuple[str, int | None]] = []

    class Listener(Reporter):
        def fail(self, error: TriptychError) -> None:
            said.append((error.message, cluster.children["good"].status))

    with pytest.raises(typer.Exit) as caught, running(cluster, Listener(Console(quiet=True))):
        pass
    assert caught.value.exit_code == 1 and cluster.children == {}
    assert [("bad ended with status 3" in message, status) for message, status in said] == [(True, None)]


@pytest.fixture
def full() -> Iterator[Console]:
    """A terminal that takes nothing."""
    with TextIOWrapper(FileIO("/dev/full", "w"), write_through=True) as device:
        yield Console(file=device)


def test_a_cluster_is_stopped_although_nothing_can_be_said(cluster: LocalCluster, full: Console) -> None:
    reporter = Reporter(full)
    cluster.parts, cluster._on_ready = [script("a", LISTEN + FOREVER)], reporter.on_ready
    with pytest.raises(OSError, match="No space"), running(cluster, reporter):
        pass
    assert cluster.children == {}


def test_a_log_line_that_cannot_be_written_is_lost_and_the_part_is_read_on(
    children: list[Child], full: Console
) -> None:
    child = Child(script("part", "print('one'); print('two')"), Reporter(full).on_line)
    children.append(child)
    until(lambda: child.tail() == ["one", "two"])
