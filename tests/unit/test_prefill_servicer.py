"""What a prefill call leaves behind when it fails before anything was computed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.prefill.servicer import PrefillServicer
from triptych.errors import FailedPreconditionError, InvalidArgumentError, TriptychError
from triptych.v1.prefill_pb2 import PrefillBegin, PrefillRequest
from triptych.v1.types_pb2 import Grammar, ImageSpan, Prompt, SamplingParams


class Refusing:
    """Grammars and deliveries of which none can be had, and a source that notes whose leases end."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []

    async def prepare(self, language: object) -> None:
        raise InvalidArgumentError("no grammar", param="grammar")

    def open(self, begin: PrefillBegin) -> None:
        raise FailedPreconditionError("the ticket was given up")

    async def unlease(self, key: str, request: str) -> None:
        self.ended.append((key, request))


@pytest.mark.parametrize(
    ("sampling", "error"),
    [(SamplingParams(grammar=Grammar(regex="(")), InvalidArgumentError), (SamplingParams(), FailedPreconditionError)],
    ids=["grammar", "ticket"],
)
async def test_leases_end_however_early_a_call_fails(sampling: SamplingParams, error: type[TriptychError]) -> None:
    twin: Any = Refusing()
    site: Any = SimpleNamespace(parts=SimpleNamespace(grammars=twin))
    prompt = Prompt(images=[ImageSpan(embedding_key="a"), ImageSpan(embedding_key="b"), ImageSpan(embedding_key="a")])

    async def messages() -> AsyncIterator[PrefillRequest]:
        yield PrefillRequest(begin=PrefillBegin(request_id="r", prompt=prompt, sampling=sampling))

    servicer = PrefillServicer(twin, site, source=twin, puller=twin, deliveries=twin, tally=twin)
    with pytest.raises(error):
        await servicer.Prefill(messages(), context=twin)
    assert sorted(twin.ended) == [("a", "r"), ("b", "r")]
