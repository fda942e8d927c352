"""What the laboratory's commands do: a cluster where none is named, progress, rows, tables and the report."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from triptych.cli.cluster import LocalCluster
from triptych.cli.door import Door
from triptych.cli.plan import ClusterOptions, default_model
from triptych.errors import ConfigError, InvalidArgumentError
from triptych.lab.endpoint import Endpoint, TriptychEndpoint
from triptych.lab.material import Material
from triptych.lab.openai_endpoint import OpenAIEndpoint
from triptych.lab.record import Prices, Row, read_rows, write_rows
from triptych.lab.run import FLUSH, LOST, Breakers, Lab, Plan, trials
from triptych.lab.summary import lines, second_calls
from triptych.lab.tables import to_table
from triptych.lab.trace import Arrival, Shape, draw_trace, read_trace, write_trace

TABLE_WIDTH = 150
Advance = Callable[[], None]


@dataclass(frozen=True)
class OpenAIServer:
    """Another server to measure. `salted`: it knows `cache_salt`. Many ask for no key, and the client for any."""

    url: str
    model: str
    salted: bool
    api_key: str


def run_on_triptych(door: Door | None, plan: Plan, material: Material, prices: Prices, out: Path) -> None:
    """The experiment on a cluster; one that was started for it can also be broken between turns."""
    with _cluster(door) as (router, breakers), closing(TriptychEndpoint(router.client())) as endpoint:
        whole = replace(plan, breaks=(*plan.breaks, *breakers))
        _experiment(endpoint, whole, material, prices, out, f"a Triptych cluster at {router.address}", breakers)


def run_on_openai(server: OpenAIServer, plan: Plan, material: Material, prices: Prices, out: Path) -> None:
    """The experiment on any server with OpenAI's API; InvalidArgumentError when its model is not named."""
    if not server.model:
        raise InvalidArgumentError("name the model of that server with --model", param="model")
    try:
        import openai  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigError("measuring other servers needs the package openai: install the extra `lab`") from error
    client = openai.OpenAI(base_url=server.url, api_key=server.api_key, max_retries=0)
    with closing(OpenAIEndpoint(client, server.model, server.salted)) as endpoint:
        _experiment(endpoint, plan, material, prices, out, server.url, {})


def replay_trace(path: Path, door: Door | None, material: Material, prices: Prices, speed: float, out: Path) -> None:
    """Replay and report."""
    arrivals = read_trace(path, material)
    with _cluster(door) as (router, _), _progress(len(arrivals), "replaying") as advance:
        rows, failures = asyncio.run(_replayed(router, arrivals, prices, speed, advance))
    _finish(out, rows, f"a Triptych cluster at {router.address}", prices)
    for reason, count in sorted(failures.items()):
        Console().print(f"failed: {count} x {reason}")


def draw(path: Path, shape: Shape, material: Material) -> str:
    """Draw a trace; what was written, in words."""
    arrivals = draw_trace(shape, material)
    write_trace(path, arrivals, material)
    return f"{len(arrivals)} requests over {arrivals[-1].at_s:.0f} s in {path}"


def remake_report(rows: Path, out: Path) -> None:
    """The page of rows that were recorded before."""
    _write_report(out, read_rows(rows), str(rows), Prices())


def _experiment(
    endpoint: Endpoint, plan: Plan, material: Material, prices: Prices, out: Path, target: str, breakers: Breakers
) -> None:
    rows: list[Row] = []
    todo, bench = trials(plan, material), Lab(endpoint, prices, rows.append, breakers)
    with _progress(len(todo), "experiments") as advance:
        for trial in todo:
            bench.run(trial)
            advance()
    _finish(out, rows, target, prices)


async def _replayed(
    router: Door, arrivals: Sequence[Arrival], prices: Prices, speed: float, advance: Advance
) -> tuple[list[Row], Counter[str]]:
    from triptych.aio import AsyncClient  # noqa: PLC0415 - as in the SDK, asyncio only for those who use it
    from triptych.lab.replay import Replay  # noqa: PLC0415

    rows: list[Row] = []

    def observe(row: Row | None) -> None:
        rows.extend([row] if row is not None else [])
        advance()

    async with AsyncClient(router.address, api_key=router.api_key, tls=router.tls) as client:
        replay = Replay(client, prices, observe, speed)
        await replay.run(arrivals)
    return rows, replay.failures


def _finish(out: Path, rows: Sequence[Row], target: str, prices: Prices) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / "rows.jsonl", rows)
    console = Console() if Console().is_terminal else Console(width=TABLE_WIDTH)
    for title, chosen in _chapters(rows):
        if chosen:
            console.print(to_table(title, lines(chosen)))
    _write_report(out / "report.html", rows, target, prices)
    console.print(f"rows and report are in {out}")


def _chapters(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    second = second_calls(rows)
    return [
        ("second requests with pictures", [row for row in second if row.pictures]),
        ("second requests without pictures", [row for row in second if not row.pictures]),
        ("policies over many turns", [row for row in rows if row.experiment == "session"]),
        ("breaks between turns", [row for row in rows if row.experiment == "break" and row.turn > 1]),
        ("replay", [row for row in rows if row.experiment == "replay"]),
    ]


def _write_report(path: Path, rows: Sequence[Row], target: str, prices: Prices) -> None:
    try:
        from triptych.lab.report import write_report  # noqa: PLC0415 - plots are an optional dependency
    except ImportError as error:
        raise ConfigError(f"the report needs {error.name}: install the extra `lab`") from error
    write_report(path, rows, target, prices)


@contextmanager
def _progress(total: int, title: str) -> Iterator[Advance]:
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


@contextmanager
def _cluster(door: Door | None) -> Iterator[tuple[Door, Breakers]]:
    """The cluster behind `door`, or one of its own, which always pulls KV cached elsewhere and can be broken."""
    if door is not None:
        yield door, {}
        return
    options = ClusterOptions(default_model(), log_level="WARNING", extra={"prefill": ["--pull", "always"]})
    with LocalCluster(options) as cluster:
        yield (
            Door(cluster.grpc_address),
            {FLUSH: lambda: _flush(cluster.redis_url), LOST: lambda: cluster.replace("decode")},
        )


def _flush(redis_url: str) -> None:
    """One inline command; a whole client is not needed for it."""
    host, _, port = redis_url.removeprefix("redis://").partition("/")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        connection.recv(64)
