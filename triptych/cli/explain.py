"""`triptych explain`: what the caches did for the latest requests, and why not more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from google.protobuf import json_format
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triptych.cli.door import Door
from triptych.v1.router_pb2 import Explanation
from triptych.v1.types_pb2 import DivergenceKind

TABLE_WIDTH = 150
_NOTHING = (DivergenceKind.DIVERGENCE_KIND_UNSPECIFIED, DivergenceKind.DIVERGENCE_KIND_NONE)


def run_explain(door: Door, last: int, session: str, cache_salt: str | None, as_json: bool) -> None:
    """Print them, the oldest first, as one reads a log."""
    with door.client() as client:
        told = client.explain(last, session, cache_salt)[::-1]
    console = Console() if Console().is_terminal else Console(width=TABLE_WIDTH)
    if as_json:
        entries = [json_format.MessageToDict(each, preserving_proto_field_name=True) for each in told]
        console.print_json(json.dumps(entries))
    else:
        console.print(to_table(told))


def to_table(told: Sequence[Explanation]) -> Table:
    """A row a request, and below it what to do where something was lost."""
    table = Table(box=box.SIMPLE)
    for heading in ("when (UTC)", "request", "session", "turn"):
        table.add_column(heading, no_wrap=True)
    for heading in ("prompt", "read", "created", "uncached"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("diverged")
    for each in told:
        table.add_row(*_cells(each))
    return table


def _cells(told: Explanation) -> list[str]:
    usage, found = told.usage, told.usage.first_divergence
    when = datetime.fromtimestamp(told.finished_unix_ms / 1000, UTC).strftime("%H:%M:%S")
    counts = (usage.prompt_tokens, usage.cache_read_tokens, usage.cache_creation_tokens, usage.uncached_tokens)
    turn = str(found.turn) if found.turn else "–"
    # Callers choose names; in a table brackets would be read as colours.
    request, session = escape(told.request_id[:16]), escape(told.session_id[:24])
    return [when, request, session or "–", turn, *map(str, counts), sentence(told)]


def sentence(told: Explanation) -> str:
    """Where and why, in words."""
    if not told.usage.HasField("first_divergence"):
        return "nothing earlier to compare with"
    found = told.usage.first_divergence
    if found.kind in _NOTHING:
        return "continues the earlier request"
    kind = DivergenceKind.Name(found.kind).removeprefix("DIVERGENCE_KIND_").lower().replace("_", " ")
    place = f"{kind} at token {found.token_position}, message {found.message_index}"
    return f"{place}: {found.lost_tokens} tokens lost. {found.hint}" if found.lost_tokens else f"{place}; nothing lost"
