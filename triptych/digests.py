"""Content digests that clients and services must compute alike: BLAKE3-256 over length-prefixed, tagged fields.

digest(tag, f1, f2, ...) = BLAKE3(len(tag) tag len(f1) f1 len(f2) f2 ...), every length an unsigned 64-bit
little-endian number. The tag ends in a version. Digests are 64 lower-case hexadecimal digits, never truncated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from blake3 import blake3

from triptych.errors import InvalidArgumentError

FILE_TAG = "triptych.file.v1"
_HEX = re.compile(r"[0-9a-f]{64}")


def raw_digest(tag: str, *fields: bytes) -> bytes:
    """The 32 bytes of `digest`, for digests that only ever travel between services."""
    return _hash(tag, fields).digest()


def digest_in_pieces(tag: str, fields: Sequence[bytes], size_bytes: int, pieces: Iterable[bytes]) -> str:
    """`digest` of the fields and a last one of `size_bytes`, of which no more than a piece is in memory at a time."""
    hasher = _hash(tag, fields)
    hasher.update(size_bytes.to_bytes(8, "little"))
    for piece in pieces:
        hasher.update(piece)
    return str(hasher.hexdigest())


def _hash(tag: str, fields: Sequence[bytes]) -> blake3:
    hasher = blake3()
    for part in (tag.encode(), *fields):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher


def digest(tag: str, *fields: bytes) -> str:
    """Hex digest of the tagged fields; moving a byte from one field to the next changes it."""
    return raw_digest(tag, *fields).hex()


def file_digest(data: bytes) -> str:
    """File digest of an uploaded picture: its bytes as they are, whatever they contain."""
    return digest(FILE_TAG, data)


def check_digest(text: str, param: str) -> str:
    """Return `text` when it is a well-formed digest, else raise InvalidArgumentError naming `param`."""
    if not _HEX.fullmatch(text):
        raise InvalidArgumentError("a digest is exactly 64 lower-case hexadecimal digits", param=param)
    return text
