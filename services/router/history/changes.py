"""What changed between the messages of two requests of one conversation. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from common.images.looks import Seen, near_duplicates
from services.router.history.turns import Part, Said
from triptych.v1.types_pb2 import DivergenceKind

Kind: TypeAlias = "DivergenceKind.ValueType"


@dataclass(frozen=True, slots=True)
class Change:
    """`message` counts from 0. `shown`: the model is shown something else; a file alone is no difference to it."""

    kind: Kind
    message: int
    shown: bool = True


def changed(earlier: Sequence[Said], now: Sequence[Said]) -> Change | None:
    """The first change of what both have; None where `now` only goes on, or stops earlier."""
    for index, (before, after) in enumerate(zip(earlier, now, strict=False)):
        if before.content != after.content:
            return Change(_kind(earlier[index:], now[index:]), index)
    for index, (before, after) in enumerate(zip(earlier, now, strict=False)):
        if before.parts != after.parts:
            return Change(DivergenceKind.DIVERGENCE_KIND_IMAGE_REENCODED, index, shown=False)
    return None


def _kind(earlier: Sequence[Said], now: Sequence[Said]) -> Kind:
    """Of two message lists that differ in their first message."""
    before, after = _images(earlier), _images(now)
    if _reordered(earlier, now):
        return DivergenceKind.DIVERGENCE_KIND_ORDER_CHANGED
    if earlier[0].images == now[0].images:
        return DivergenceKind.DIVERGENCE_KIND_TEXT_EDITED
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    mine, theirs = earlier[0].images, now[0].images
    if not gone and not new:
        # All pictures are there, so a message without any has come or gone before them.
        return DivergenceKind.DIVERGENCE_KIND_TEXT_EDITED
    # A message from further down stands here now: what was between them has been left out.
    moved_up = bool(gone) and bool(theirs) and set(theirs) <= set(before) and earlier[0].texts != now[0].texts
    if len(mine) == len(theirs) and mine and not moved_up:
        return _replaced(earlier[0], now[0])
    if (gone and len(mine) > len(theirs)) or moved_up or (gone and not new):
        return DivergenceKind.DIVERGENCE_KIND_IMAGE_REMOVED
    return DivergenceKind.DIVERGENCE_KIND_IMAGE_ADDED if theirs else DivergenceKind.DIVERGENCE_KIND_TEXT_EDITED


def _reordered(earlier: Sequence[Said], now: Sequence[Said]) -> bool:
    """The earlier messages are all there, in another order, or the parts of the first one are."""
    first, other = earlier[0], now[0]
    if first.role == other.role and sorted(first.content[1]) == sorted(other.content[1]):
        return True
    same = now[: len(earlier)]
    if sorted(said.content for said in earlier) == sorted(said.content for said in same):
        return True
    texts = [said.texts for said in earlier] == [said.texts for said in same]
    before, after = _images(earlier), _images(same)
    return texts and before != after and sorted(before) == sorted(after)


def _replaced(before: Said, after: Said) -> Kind:
    pairs = zip(_pictures(before), _pictures(after), strict=True)
    if all(one.image_id == other.image_id or _look_the_same(one, other) for one, other in pairs):
        return DivergenceKind.DIVERGENCE_KIND_IMAGE_REENCODED
    return DivergenceKind.DIVERGENCE_KIND_IMAGE_REPLACED


def _look_the_same(one: Part, other: Part) -> bool:
    return bool(near_duplicates([Seen(one.look, 1, 1), Seen(other.look, 1, 1)]))


def _pictures(said: Said) -> list[Part]:
    return [part for part in said.parts if part.image_id]


def _images(messages: Sequence[Said]) -> list[str]:
    return [image for said in messages for image in said.images]
