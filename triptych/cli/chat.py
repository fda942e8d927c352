"""`triptych chat`: the turns of one conversation about pictures, answered as they are generated."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from triptych.cli.door import Door
from triptych.conversation import (
    AppendOnly,
    Conversation,
    ImageReferences,
    ImageWindow,
    Policy,
    PrefixWarning,
    RollOver,
)
from triptych.exchange import GenerateOptions
from triptych.messages import Image
from triptych.v1.types_pb2 import Usage

PolicyName = Literal["append-only", "image-window", "roll-over", "references"]
FROM_STDIN = "-"


def run_chat(
    questions: Sequence[str], images: Sequence[Path], door: Door, model: str, policy: Policy, options: GenerateOptions
) -> None:
    """Print each answer piece by piece, then its account in one dim line; `images` go before the first question."""
    console = Console(soft_wrap=True, highlight=False)
    pictures = [Image.from_file(path) for path in images]
    with door.client() as client, warnings.catch_warnings():
        warnings.simplefilter("always", PrefixWarning)
        warnings.showwarning = lambda message, *_: console.print(f"warning: {message}", style="yellow")
        talk = Conversation(client, policy, model=model, **options)
        for question in turns(questions, sys.stdin):
            _say(console, talk, [*pictures, *parts_of(question)])
            pictures = []


def make_policy(name: PolicyName, images: int) -> Policy:
    """The policy of that name; `images` is the limit of those that have one."""
    if name == "image-window":
        return ImageWindow(images)
    if name == "roll-over":
        return RollOver(max_images=images)
    return ImageReferences() if name == "references" else AppendOnly()


def turns(questions: Sequence[str], lines: Iterable[str]) -> Iterator[str]:
    """The questions in order, `-` standing for every line of `lines` that is not empty."""
    for question in questions:
        if question != FROM_STDIN:
            yield question
        else:
            yield from (line.strip() for line in lines if line.strip())


def parts_of(question: str) -> list[str | Image]:
    """`@PATH` words at the beginning are pictures, the rest is text; InvalidImageError for a file that is none."""
    parts: list[str | Image] = []
    while question.startswith("@"):
        path, _, question = question.partition(" ")
        parts.append(Image.from_file(path[1:]))
    return [*parts, question] if question else parts


def _say(console: Console, talk: Conversation, parts: Sequence[str | Image]) -> None:
    stream = talk.ask(*parts)
    for piece in stream.text():
        console.print(piece, end="", markup=False)
    console.print()
    console.print(account(stream.answer().usage), style="dim")


def account(usage: Usage) -> str:
    """What an answer cost, in one line."""
    return (
        f"{usage.prompt_tokens} prompt tokens ({usage.visual_tokens} visual, {usage.cache_read_tokens} cached), "
        f"{usage.completion_tokens} generated; {usage.embedding_misses} encoded, {usage.embedding_hits} reused; "
        f"first token after {usage.times.first_token_ns / 1e6:.0f} ms"
    )
