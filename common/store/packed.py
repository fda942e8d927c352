"""A value on its way into the store: pieces that are views, and a checksum that is made while they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blake3 import blake3

CHECKSUM_BYTES = 32


class Packed:
    """A value in pieces. Those of the data are views of the tensors: nothing is copied before it is sent."""

    def __init__(self, body: tuple[bytes | memoryview, ...]) -> None:
        self._body = body
        self._checksum: bytes | None = None

    def __len__(self) -> int:
        return CHECKSUM_BYTES + sum(map(len, self._body))

    def __bytes__(self) -> bytes:
        if self._checksum is None:
            self._checksum = checksum_of(self._body)
        return b"".join([self._checksum, *self._body])

    def pieces(self, most: int) -> Iterator[bytes | memoryview]:
        """The value in pieces of at most `most` bytes, with zeros for the checksum: it is made on the way.

        Each piece is hashed when the next is asked for, while its receiver works.
        """
        yield bytes(CHECKSUM_BYTES)
        hasher = blake3()
        for part in self._body:
            for start in range(0, len(part), most):
                piece = memoryview(part)[start : start + most]
                yield piece
                hasher.update(piece)
        self._checksum = hasher.digest()

    @property
    def checksum(self) -> bytes:
        """Known once `pieces` have been consumed."""
        return self._checksum or checksum_of(self._body)


def checksum_of(pieces: Iterable[bytes | memoryview]) -> bytes:
    """BLAKE3-256 of the pieces in order."""
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    return bytes(hasher.digest())
