"""`triptych images`: what a running cluster knows of pictures, and which of them were encoded needlessly."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from triptych.cli.door import Door
from triptych.v1.router_pb2 import KnownImage, ListImagesResponse, LookAlikes

SHORT = 12
COLUMNS = ("picture", "size", "tokens", "uses", "last use", "files", "looks like")


def run_images(door: Door, cache_salt: str | None, *, as_json: bool) -> None:
    """Print the pictures known in a scope, as a table or as JSON."""
    with door.client() as client:
        listing = client.list_images(cache_salt)
    if as_json:
        print(json.dumps(to_json(listing), indent=2))  # noqa: T201
        return
    console = Console()
    console.print(to_table(listing, time.time()))
    for line in summary(listing):
        console.print(line, highlight=False)


def to_table(listing: ListImagesResponse, now: float) -> Table:
    """One row a picture, the latest used first; `now` in seconds since 1970."""
    groups = {name: f"#{number}" for number, group in enumerate(listing.look_alikes, 1) for name in group.image_ids}
    table = Table(title="Known pictures", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("tokens", "uses") else "left", no_wrap=name != "files")
    for known in listing.images:
        table.add_row(*row(known, now), groups.get(known.image.image_id, ""))
    return table


def row(known: KnownImage, now: float) -> list[str]:
    """Cells of one picture, without its group."""
    image = known.image
    size, files = f"{image.width}x{image.height}", " ".join(digest[:SHORT] for digest in known.digests)
    used = ago(now - known.last_use_unix_ms / 1000)
    return [image.image_id[:SHORT], size, str(image.tokens), str(known.uses), used, files]


def ago(seconds: float) -> str:
    """A duration in its largest whole unit."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def summary(listing: ListImagesResponse) -> list[str]:
    """How many there are, and for each group what it cost."""
    lines = [_plural(len(listing.images), "picture")]
    for number, group in enumerate(listing.look_alikes, 1):
        cost = f"{_plural(group.encodings, 'encoding')}, {_plural(needless(group), 'needless encode')}"
        lines.append(f"#{number}: same picture, {cost} ({len(group.image_ids)} forms are known)")
    return lines


def needless(group: LookAlikes) -> int:
    """Encodings beyond the one that would have been enough."""
    return max(0, group.encodings - 1)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def to_json(listing: ListImagesResponse) -> dict[str, Any]:
    """Everything, under the names of the contract."""
    return {
        "images": [_plain(known) for known in listing.images],
        "look_alikes": [
            {
                "image_ids": list(group.image_ids),
                "encodings": group.encodings,
                "needless_encodes": needless(group),
            }
            for group in listing.look_alikes
        ],
    }


def _plain(known: KnownImage) -> dict[str, Any]:
    image = known.image
    return {
        "image_id": image.image_id,
        "width": image.width,
        "height": image.height,
        "tokens": image.tokens,
        "uses": known.uses,
        "last_use_unix_ms": known.last_use_unix_ms,
        "digests": list(known.digests),
        "look": known.look,
    }
