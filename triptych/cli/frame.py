"""One frame of `triptych top`: two snapshots of a cluster as tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from triptych.v1.router_pb2 import WatchClusterResponse, WorkerStatus
from triptych.v1.worker_pb2 import WorkerRole

BAR = 16
NOTHING = "–"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Rates:
    """What changed from one snapshot to the next, a second."""

    seconds: float
    earlier: WatchClusterResponse
    now: WatchClusterResponse

    @classmethod
    def between(cls, earlier: WatchClusterResponse | None, now: WatchClusterResponse) -> Rates | None:
        """None without an earlier snapshot, or when the router was started anew in between."""
        if earlier is None or now.at_unix_ms <= earlier.at_unix_ms:
            return None
        if now.finished_requests < earlier.finished_requests:
            return None
        return cls((now.at_unix_ms - earlier.at_unix_ms) / 1000, earlier, now)

    def of(self, field: str) -> float:
        """Of a counter of the router."""
        return float(getattr(self.now, field) - getattr(self.earlier, field)) / self.seconds

    def moved(self, worker: WorkerStatus, field: str) -> float | None:
        """Of a counter in the load of a worker; None when it was not there before, or began anew."""
        before = {each.info.instance_id: each.load for each in self.earlier.workers}.get(worker.info.instance_id)
        change = getattr(worker.load, field) - getattr(before, field) if before is not None else -1
        return change / self.seconds if change >= 0 else None


def frame(earlier: WatchClusterResponse | None, now: WatchClusterResponse) -> RenderableType:
    """Everything; rates are known from the second snapshot on."""
    rates = Rates.between(earlier, now)
    parts: list[RenderableType] = [Panel(_summary(now, rates), title=_title(now), title_align="left")]
    parts += [Text(f"missing: {sentence}", style="bold red") for sentence in now.missing]
    degraded = [sentence for worker in now.workers for sentence in worker.info.degraded]
    parts += [Text(f"degraded: {sentence}", style="yellow") for sentence in dict.fromkeys(degraded)]
    return Group(*parts, _workers(now.workers, rates))


def _title(now: WatchClusterResponse) -> str:
    models = sorted({worker.info.model for worker in now.workers})
    when = datetime.fromtimestamp(now.at_unix_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    return f"{', '.join(models) or 'no workers'} · {when}"


def _summary(now: WatchClusterResponse, rates: Rates | None) -> Table:
    table = Table.grid(padding=(0, 3))
    queue, promised = now.queue, f"{now.promised_tokens:,} tokens promised"
    waiting = f"{queue.waiting} waiting ({queue.tenants} tenants, {queue.tokens:,} tokens)"
    table.add_row("requests", f"{now.running_requests} running", waiting, f"{now.finished_requests:,} finished")
    table.add_row(
        "tokens", _per_s(rates, "prompt_tokens", "read"), _per_s(rates, "completion_tokens", "said"), promised
    )
    hits, needed = now.embedding_hits, now.embedding_hits + now.embedding_misses
    embeddings = f"embeddings {_share(hits, needed)} of {needed:,}"
    prefix = f"KV prefix {_share(now.cache_read_tokens, now.prompt_tokens)} of {now.prompt_tokens:,} tokens"
    table.add_row("hits", prefix, embeddings, f"{now.retries:,} moved to other workers")
    moved = _size(rates.of("kv_transfer_bytes")) + "/s" if rates else NOTHING
    table.add_row("transfers", f"{moved} from prefill to decode", f"{_size(now.kv_transfer_bytes)} in all", "")
    return table


def _workers(workers: Sequence[WorkerStatus], rates: Rates | None) -> Table:
    table = Table(box=box.SIMPLE)
    for heading in ("worker", "address", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("waiting", "running", "mine", "to compute"):
        table.add_column(heading, justify="right")
    table.add_column("KV blocks: in use, cached, all", no_wrap=True)
    for heading in ("preempted", "KV out", "KV in"):
        table.add_column(heading, justify="right")
    for worker in workers:
        table.add_row(*_cells(worker, rates))
    return table


def _cells(worker: WorkerStatus, rates: Rates | None) -> list[RenderableType]:
    info, load = worker.info, worker.load
    role = WorkerRole.Name(info.role).removeprefix("WORKER_ROLE_").lower()
    counts = (load.waiting_requests, load.running_requests, worker.requests, load.pending_tokens)
    moved = [_moved(rates, worker, field) for field in ("kv_pushed_bytes", "kv_pulled_bytes")]
    return [role, info.address, _state(worker), *map(str, counts), _blocks(worker), str(load.preemptions), *moved]


def _state(worker: WorkerStatus) -> Text:
    if not worker.reachable:
        return Text("lost", style="bold red")
    return Text("draining", style="yellow") if worker.info.draining else Text("ready", style="green")


def _blocks(worker: WorkerStatus) -> RenderableType:
    load = worker.load
    total = load.blocks_in_use + load.blocks_free
    if not total:
        return NOTHING
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=total, completed=load.blocks_in_use, width=BAR)
    row.add_row(bar, f"{load.blocks_in_use} + {load.blocks_cached} of {total}")
    return row


def _moved(rates: Rates | None, worker: WorkerStatus, field: str) -> str:
    rate = rates.moved(worker, field) if rates else None
    return NOTHING if rate is None else f"{_size(rate)}/s"


def _per_s(rates: Rates | None, field: str, what: str) -> str:
    return f"{rates.of(field):,.0f} {what} a second" if rates else f"{NOTHING} {what} a second"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else NOTHING


def _size(size: float) -> str:
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
