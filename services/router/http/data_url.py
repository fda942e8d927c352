"""Reads pictures from data URLs: strict on the scheme and on an image type, lenient on how base64 is written."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote

from triptych.errors import InvalidImageError, PayloadTooLargeError

SCHEME = "data:"
_URL_SAFE = str.maketrans("-_", "+/")


def read_data_url(url: str, max_bytes: int, param: str) -> bytes:
    """The bytes; InvalidImageError when it is no picture in base64, PayloadTooLargeError over the limit."""
    head, comma, payload = url[len(SCHEME) :].partition(",")
    media_type, *options = (part.strip().lower() for part in head.split(";"))
    if not comma or not media_type.startswith("image/"):
        raise InvalidImageError("the data URL is of no image type (data:image/...;base64,...)", param=param)
    if "base64" not in options:
        raise InvalidImageError("the data URL is not in base64 (data:image/...;base64,...)", param=param)
    text = _clean(payload)
    _check_size(len(text) * 3 // 4, max_bytes, param)
    return _decode(text, param)


def _clean(payload: str) -> str:
    text = unquote(payload) if "%" in payload else payload
    return "".join(text.split()).rstrip("=").translate(_URL_SAFE)


def _check_size(size_bytes: int, max_bytes: int, param: str) -> None:
    if size_bytes > max_bytes:
        raise PayloadTooLargeError(f"the image has {size_bytes} bytes; the limit is {max_bytes}", param=param)


def _decode(text: str, param: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidImageError("the payload of the data URL is no base64", param=param) from error
    if not data:
        raise InvalidImageError("the data URL holds no bytes", param=param)
    return data
