"""Token ids of what stands between the added tokens of a chat, remembered: a conversation returns with every turn."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from common.store.memory import MemoryTier
from triptych.digests import digest

MAX_BYTES = 16 * 2**20
TAG = "triptych.segment.v1"
_BYTES_PER_TOKEN = 4
_FIXED_BYTES = 250


class Segments:
    """Encodes as `encode` does, which is asked for each text once in a scope. For tokenizers that are `separable`.

    What is remembered are the digests of texts and their ids. Scopes do not share them: how fast an answer comes would
    tell one tenant what another has said.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], added: Mapping[str, int], max_bytes: int = MAX_BYTES
    ) -> None:
        self._encode, self._added = encode, added
        longest_first = sorted(added, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._known: MemoryTier[array[int]] = MemoryTier(max_bytes)

    def encode(self, text: str, scope: str) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = []
        for part in filter(None, self._pattern.split(text)):
            token = self._added.get(part)
            if token is None:
                ids += self._between(part, scope)
            else:
                ids.append(token)
        return ids

    def _between(self, text: str, scope: str) -> Iterable[int]:
        key = digest(TAG, scope.encode(), text.encode())
        ids = self._known.get(key)
        if ids is None:
            ids = array("I", self._encode(text))
            self._known.put(key, ids, _BYTES_PER_TOKEN * len(ids) + _FIXED_BYTES)
        return ids


def separable(backend: Any) -> bool:
    """Whether the texts between added tokens are tokenized alike wherever they stand, and added tokens by spelling.

    So it is for byte-level BPE, where nothing is put before a text that is not there. SentencePiece's may put a space.
    """
    added = backend.get_added_tokens_decoder().values()
    as_spelled = not any(token.lstrip or token.rstrip or token.single_word or token.normalized for token in added)
    steps = repr(backend.pre_tokenizer)
    return bool(added) and as_spelled and "ByteLevel(add_prefix_space=False" in steps and "Metaspace" not in steps
