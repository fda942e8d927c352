"""What is remembered of earlier requests, so that a later one can be told where it stopped being their continuation."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from common.identity.blocks import BlockChain, KeyedSpan
from common.store.memory import MemoryTier

STRIDE = 64
"""Tokens between two places where prompts without a session are compared."""
_FIXED_BYTES = 2048
_MARK_BYTES = 160
_INDEX_BYTES = 160


@dataclass(frozen=True, slots=True)
class Part:
    """A text by its digest, or a picture by its image id with the file it came in and its perceptual hash."""

    text: str = ""
    image_id: str = ""
    file: str = ""
    look: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """One message: its role and parts."""

    role: str
    parts: tuple[Part, ...]

    @property
    def images(self) -> tuple[str, ...]:
        """Image ids in order."""
        return tuple(part.image_id for part in self.parts if part.image_id)

    @property
    def texts(self) -> tuple[str, ...]:
        """Digests of the texts in order."""
        return tuple(part.text for part in self.parts if part.text)

    @property
    def content(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What the model is shown: two messages of one content read the same, in whatever files the pictures came."""
        return self.role, tuple((part.text, part.image_id) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished request: `token_ids` of prompt and answer, pictures by key and place, messages, and the tools."""

    request_id: str
    number: int
    token_ids: array[int]
    prompt_tokens: int
    spans: tuple[KeyedSpan, ...]
    messages: tuple[Said, ...]
    tools: str

    @property
    def size_bytes(self) -> int:
        """About what it takes to remember it."""
        marks = sum(len(said.parts) + 1 for said in self.messages) * _MARK_BYTES
        places = len(self.token_ids) // STRIDE * _INDEX_BYTES
        return len(self.token_ids) * self.token_ids.itemsize + marks + places + _FIXED_BYTES


class Turns:
    """The latest turns, bounded in bytes; the least recently used goes first. Awaits nothing, knows no clock."""

    def __init__(self, max_bytes: int) -> None:
        self._turns: MemoryTier[Turn] = MemoryTier(max_bytes)
        # Where turns of no session can be found again: a beginning to the key of the turn. Entries outlive their turn,
        # which then is not found; the tier bounds them.
        self._places: MemoryTier[str] = MemoryTier(max_bytes // 4)

    def __len__(self) -> int:
        return len(self._turns)

    def previous(self, scope: str, session: str, beginnings: Sequence[str]) -> Turn | None:
        """What to compare a prompt with: the last turn of its session, else that with the longest common beginning."""
        if session:
            return self._turns.get(_session_key(scope, session))
        found = None
        for place in beginnings:
            turn = self._turns.get(self._places.get(place) or "")
            if turn is None:
                break
            found = turn
        return found

    def put(self, scope: str, session: str, turn: Turn, beginnings: Sequence[str]) -> None:
        """Remember a turn; it takes the place of its session's last one."""
        key = _session_key(scope, session) if session else f"{scope}/{turn.request_id}"
        if self._turns.put(key, turn, turn.size_bytes) and not session:
            for place in beginnings:
                self._places.put(place, key, _INDEX_BYTES)


def beginnings_of(scope: str, token_ids: Sequence[int], spans: Sequence[KeyedSpan]) -> list[str]:
    """Names of a prompt's beginnings, STRIDE tokens apart."""
    chain = BlockChain(scope.encode(), STRIDE, spans)
    chain.extend(token_ids)
    return [each.hex() for each in chain.hashes]


def _session_key(scope: str, session: str) -> str:
    # Callers choose the name: it may be long, and must not be mistaken for another scope's.
    return f"{scope}:{sha256(session.encode()).hexdigest()}"
