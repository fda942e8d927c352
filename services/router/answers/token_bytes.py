"""The UTF-8 bytes that one token contributes to an answer, for log-probabilities."""

from __future__ import annotations

import re
from functools import cache

from services.router.prompts.tokenizer import Tokenizer

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
# SentencePiece spells a space this way.
_SPACE = "\u2581"


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Bytes of a token; joined over an answer they are its text. Empty for special and unknown tokens."""
    spelling = tokenizer.piece(token_id)
    if spelling is None or tokenizer.is_special(token_id):
        return b""
    if tokenizer.byte_level:
        return _byte_level(spelling)
    if match := _BYTE_FALLBACK.fullmatch(spelling):
        return bytes([int(match[1], 16)])
    return spelling.replace(_SPACE, " ").encode()


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """How a token is shown: its text where it has one, else the vocabulary's spelling."""
    data = token_bytes(tokenizer, token_id)
    return data.decode(errors="replace") if data else tokenizer.piece(token_id) or ""


def _byte_level(spelling: str) -> bytes:
    table = _byte_alphabet()
    if all(char in table for char in spelling):
        return bytes(table[char] for char in spelling)
    # Added tokens are spelled as they are.
    return spelling.encode()


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others as characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [value for value in range(256) if value not in printable]
    shifted = {chr(256 + index): value for index, value in enumerate(others)}
    return {chr(value): value for value in printable} | shifted
