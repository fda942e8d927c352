"""What a picture looks like, so that near-duplicates can be reported. It never decides reuse.

A look is 64 bits of gradients and a mean colour. The gradients are Neal Krawetz's difference hash ("Kind of Like
That", 2013): shrink the picture to 9x8 grey cells and note where a cell is darker than its right neighbour. Here a cell
must be darker by a margin, so that the noise of a flat picture sets no bit; and because all flat pictures then look
alike, the mean colour counts too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

MAX_DISTANCE = 6
"""Gradient bits of 64 in which two forms of one picture may differ."""
MAX_COLOUR = 12
"""Steps of 256 by which each channel of their mean colours may differ."""
MAX_STRETCH = 1.05
"""How much the longer of their aspect ratios may exceed the other."""
_MARGIN = 2
_LOOK = re.compile(r"[0-9a-f]{22}")


def look_of(rgb: Image.Image) -> str:
    """22 hex digits: gradients (16) and mean red, green and blue (6) of an upright RGB picture. CPU only."""
    cells = np.asarray(rgb.resize((9, 8), Image.Resampling.BOX), dtype=np.int32)
    grey = cells @ np.array((299, 587, 114)) // 1000
    bits = (grey[:, 1:] - grey[:, :-1] > _MARGIN).ravel()
    colour = cells.reshape(-1, 3).mean(axis=0).round().astype(np.uint8)
    look: str = np.packbits(bits).tobytes().hex() + colour.tobytes().hex()
    return look


@dataclass(frozen=True)
class Seen:
    """One picture among those compared: its look, "" when unknown, and its upright size in pixels."""

    look: str
    width: int
    height: int


def near_duplicates(pictures: Sequence[Seen]) -> list[list[int]]:
    """Groups of two or more indices whose pictures look the same, each in rising order, the first group first.

    Whoever looks like any member belongs to the group. Compares all pairs, 64 bits at a time: run it in a thread.
    """
    known = [index for index, seen in enumerate(pictures) if _LOOK.fullmatch(seen.look)]
    gradients, colours, ratios = _columns([pictures[index] for index in known])
    group_of = np.arange(len(known))
    for at in range(len(known)):
        near = np.bitwise_count(gradients ^ gradients[at]) <= MAX_DISTANCE
        near &= (np.abs(colours - colours[at]) <= MAX_COLOUR).all(axis=1)
        near &= np.abs(ratios - ratios[at]) <= np.log(MAX_STRETCH)
        met = np.unique(group_of[near])
        if len(met) > 1:
            group_of[np.isin(group_of, met)] = group_of[at]
    groups: dict[int, list[int]] = {}
    for index, group in zip(known, group_of.tolist(), strict=True):
        groups.setdefault(group, []).append(index)
    return sorted(group for group in groups.values() if len(group) > 1)


def _columns(
    pictures: Sequence[Seen],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    gradients = np.array([int(seen.look[:16], 16) for seen in pictures], dtype=np.uint64)
    colours = np.array([list(bytes.fromhex(seen.look[16:])) for seen in pictures], dtype=np.int64).reshape(-1, 3)
    ratios = np.log(np.array([seen.width / seen.height for seen in pictures], dtype=np.float64))
    return gradients, colours, ratios
