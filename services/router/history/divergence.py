"""Where a prompt stopped being the continuation of an earlier one, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from common.identity.blocks import KeyedSpan
from services.router.history.changes import Change, changed
from services.router.history.turns import Turn
from triptych.v1.types_pb2 import DivergenceKind, FirstDivergence

_EDITED = "Leave earlier messages as they were sent, and put what changes at the end."
_REMOVED = "Keep earlier pictures where they are, or drop many at once at a fixed boundary instead of one a turn."
_ADDED = "Add pictures to the newest message, not to earlier ones."
_REPLACED = "Keep the earlier picture, and send the new one in the newest message."
_ORDER = "Keep messages and pictures in the order in which they were first sent."
_REENCODED = "Send the file of the first turn again, or its digest: compressing a picture anew changes its pixels."
_TEMPLATE = "Keep tools, and what the template adds, the same and in the same order through a conversation."
_ANSWER = "Send the assistant's message back exactly as it was received."
_EVICTED = "Nothing in the request: give workers more KV blocks, or look whether one was lost or replaced."
_HINTS: dict[DivergenceKind.ValueType, str] = {
    DivergenceKind.DIVERGENCE_KIND_TEXT_EDITED: _EDITED,
    DivergenceKind.DIVERGENCE_KIND_IMAGE_REMOVED: _REMOVED,
    DivergenceKind.DIVERGENCE_KIND_IMAGE_ADDED: _ADDED,
    DivergenceKind.DIVERGENCE_KIND_IMAGE_REPLACED: _REPLACED,
    DivergenceKind.DIVERGENCE_KIND_ORDER_CHANGED: _ORDER,
    DivergenceKind.DIVERGENCE_KIND_IMAGE_REENCODED: _REENCODED,
    DivergenceKind.DIVERGENCE_KIND_TEMPLATE_CHANGED: _TEMPLATE,
    DivergenceKind.DIVERGENCE_KIND_ANSWER_CHANGED: _ANSWER,
    DivergenceKind.DIVERGENCE_KIND_EVICTED: _EVICTED,
}


def first_divergence(earlier: Turn, now: Turn, read_tokens: int, block_size: int) -> FirstDivergence:
    """Compare two turns. `read_tokens` of the prompt came from a prefix cache, in blocks of `block_size`."""
    position = common_prefix(earlier, now)
    reach = min(len(earlier.token_ids), now.prompt_tokens)
    change = _change(earlier, now, position, reach)
    lost = max(0, reach - position)
    # The last token is always computed, for its logits.
    expected = min(position, now.prompt_tokens - 1) // block_size * block_size
    if change.kind == DivergenceKind.DIVERGENCE_KIND_NONE and read_tokens < expected:
        change, lost = Change(DivergenceKind.DIVERGENCE_KIND_EVICTED, change.message), expected - read_tokens
    return FirstDivergence(
        kind=change.kind,
        token_position=position,
        message_index=change.message,
        lost_tokens=lost,
        hint=_HINTS.get(change.kind, "") if lost else "",
        earlier_request_id=earlier.request_id,
        turn=now.number,
    )


def common_prefix(earlier: Turn, now: Turn) -> int:
    """Tokens at the beginning of the prompt of `now` that are the same, pictures included."""
    length = min(len(earlier.token_ids), now.prompt_tokens)
    return min(_same_tokens(earlier.token_ids, now.token_ids, length), _same_images(earlier.spans, now.spans, length))


def _change(earlier: Turn, now: Turn, position: int, reach: int) -> Change:
    found = changed(earlier.messages, now.messages)
    if position == reach:
        # Nothing is lost; still, a picture that came in another file is worth a word.
        reencoded = found is not None and found.kind == DivergenceKind.DIVERGENCE_KIND_IMAGE_REENCODED
        return found if found is not None and reencoded else Change(DivergenceKind.DIVERGENCE_KIND_NONE, _last(now))
    if found is not None and found.shown:
        return found
    if position >= earlier.prompt_tokens and earlier.tools == now.tools:
        return Change(DivergenceKind.DIVERGENCE_KIND_ANSWER_CHANGED, len(earlier.messages))
    return Change(DivergenceKind.DIVERGENCE_KIND_TEMPLATE_CHANGED, 0)


def _last(turn: Turn) -> int:
    return max(0, len(turn.messages) - 1)


def _same_tokens(one: Sequence[int], other: Sequence[int], length: int) -> int:
    """Binary search with comparisons of whole slices, which run in C."""
    low, high = 0, length
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _same_images(one: Sequence[KeyedSpan], other: Sequence[KeyedSpan], length: int) -> int:
    """Placeholders of two pictures are the same tokens, so their keys are compared."""
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return min(mine.offset, theirs.offset, length)
    rest = [*one[len(other) :], *other[len(one) :]]
    return min([span.offset for span in rest] + [length])
