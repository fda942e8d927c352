"""Names of pictures and of their embeddings; computed once and carried, never truncated."""

from __future__ import annotations

from collections.abc import Iterable

from triptych.digests import digest, digest_in_pieces

_IMAGE_TAG = "triptych.image.v1"
_EMBEDDING_TAG = "triptych.embedding.v1"


def image_id(width: int, height: int, rgb: bytes) -> str:
    """64 hex digits naming upright pixels: `rgb` is (height, width, 3) uint8, row by row.

    Width and height are hashed, too, so that equal bytes in another shape are another picture.
    """
    return image_id_of_rows(width, height, [rgb])


def image_id_of_rows(width: int, height: int, rows: Iterable[bytes]) -> str:
    """`image_id` of pixels that come some rows at a time: a picture of 40 million has 120 MB of them."""
    return digest_in_pieces(_IMAGE_TAG, (_number(width), _number(height)), 3 * width * height, rows)


def embedding_key(
    image_id: str,
    *,
    model_fingerprint: str,
    preprocessing_fingerprint: str,
    dtype: str,
    scope: str,
    detail: str = "",
) -> str:
    """64 hex digits naming an embedding by everything it depends on.

    `detail` stands for all that the request lets change this picture's features; "" when nothing does.
    """
    fields = (image_id, model_fingerprint, preprocessing_fingerprint, dtype, scope, detail)
    return digest(_EMBEDDING_TAG, *(field.encode() for field in fields))


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")
