"""By what the tokens of prompts are told apart in the metrics: few values each, and few combinations in all. Pure."""

from __future__ import annotations

from typing import NamedTuple

from triptych.conversation import POLICY_NAMES
from triptych.conversation.rollover import opens_summary
from triptych.v1.router_pb2 import GenerateRequest
from triptych.v1.types_pb2 import DivergenceKind, Usage

FEW = (1, 2, 5, 17)
MANY = (1, 256, 1024, 4096, 16384, 65536)
MOST_COMBINATIONS = 512
"""Beyond these, tokens are counted under OVERFLOW: a metric must not grow without end, whatever is asked."""


class Breakdown(NamedTuple):
    """The label values of one request, in the order of `LABELS`."""

    revision: str
    conversation: str
    content: str
    images: str
    visual_tokens: str
    turn: str
    image_evicted: str
    summarised: str
    input_tokens: str
    context_policy: str


LABELS = Breakdown._fields
Values = tuple[str, ...]
OVERFLOW: Values = ("other",) * len(LABELS)


def breakdown(request: GenerateRequest, usage: Usage, revision: str) -> Breakdown:
    """Of a finished request. `revision` is the beginning of the model's fingerprint."""
    turns = sum(message.role == "user" for message in request.messages)
    removed = usage.first_divergence.kind == DivergenceKind.DIVERGENCE_KIND_IMAGE_REMOVED
    return Breakdown(
        revision=revision,
        conversation="multi" if turns > 1 else "single",
        content="multimodal" if usage.images else "text",
        images=bucket(usage.images, FEW),
        visual_tokens=bucket(usage.visual_tokens, MANY),
        turn=bucket(turns, FEW),
        image_evicted=_said(removed),
        summarised=_said(_is_summarised(request)),
        input_tokens=bucket(usage.prompt_tokens, MANY),
        context_policy=_policy(request.context_policy),
    )


def bucket(value: int, begins: tuple[int, ...]) -> str:
    """Which of the ranges that begin at `begins` holds `value`, by name: "0", "1", "2-4", "17+"."""
    bounds = (0, *begins)
    at = max(index for index, bound in enumerate(bounds) if value >= bound)
    first = bounds[at]
    if at == len(bounds) - 1:
        return f"{first}+"
    last = bounds[at + 1] - 1
    return str(first) if first == last else f"{first}-{last}"


class Combinations:
    """The combinations seen so far."""

    def __init__(self, most: int = MOST_COMBINATIONS) -> None:
        self._most, self._seen = most, set[Values]()

    def admit(self, found: Breakdown) -> Values:
        """Label values under which to count; OVERFLOW when the combination is new and there is no room."""
        if found in self._seen:
            return found
        if len(self._seen) >= self._most:
            return OVERFLOW
        self._seen.add(found)
        return found


def _is_summarised(request: GenerateRequest) -> bool:
    return any(opens_summary(part.text) for message in request.messages for part in message.content)


def _policy(name: str) -> str:
    return name if name in POLICY_NAMES else "other" if name else "none"


def _said(holds: bool) -> str:
    return "yes" if holds else "no"
