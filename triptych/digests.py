"""Content digests that clients and services must compute alike: BLAKE3-256 over length-prefixed, tagged fields.

digest(tag, f1, f2, ...) = BLAKE3(len(tag) tag len(f1) f1 len(f2) f2 ...), every length an unsigned 64-bit
little-endian number. The tag ends in a version. Digests are 64 lower-case hexadecimal digits, never truncated.
"""

from __future__ import annotations

import re

from blake3 import blake3

from triptych.errors import InvalidArgumentError

FILE_TAG = "triptych.file.v1"
_HEX = re.compile(r"[0-9a-f]{64}")


def raw_digest(tag: str, *fields: bytes) -> bytes:
    """The 32 bytes of `digest`, for digests that only ever travel between services."""
    hasher = blake3()
    for part in (tag.encode(), *fields):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


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
