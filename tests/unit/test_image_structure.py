"""Files pieced together of too many parts are refused unread; ordinary ones are not, and nothing else is raised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.images import ImageLimits, decode_image
from common.images.structure import MAX_PARTS, MAX_SCANS, check_structure
from tests.nasty_containers import with_chunks
from tests.nasty_files import jpeg_of_scans, slow
from tests.pictures import chunk, noise, save
from triptych.errors import InvalidImageError

MAGIC = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"II*\0", b"MM\0*", b"II+\0", b"BM"]


def test_what_would_take_long_is_refused() -> None:
    for data in slow()[1].values():
        with pytest.raises(InvalidImageError, match=r"too many parts|run-length"):
            check_structure(data)


ORDINARY: dict[str, Callable[[], bytes]] = {
    "PNG of many chunks": lambda: with_chunks(*[chunk(b"abCd", b"x")] * (MAX_PARTS - 10)),
    "JPEG of many scans": lambda: jpeg_of_scans(64, MAX_SCANS - 1),
    "progressive JPEG": lambda: save(noise(64, 64), "JPEG", progressive=True),
    "BigTIFF": lambda: save(noise(64, 64), "TIFF", big_tiff=True),
    "TIFF of one-row strips": lambda: save(noise(64, 4096), "TIFF", strip_size=192),
    "GIF with a comment": lambda: save(noise(64, 64), "GIF", comment=b"x" * 100_000),
    "BMP of 256 colours": lambda: save(noise(64, 64).quantize(256), "BMP"),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_files_pass(name: str) -> None:
    assert decode_image(ORDINARY[name](), ImageLimits()).width == 64


@pytest.mark.parametrize("count", [MAX_SCANS, MAX_SCANS + 1])
def test_one_scan_more_is_one_too_many(count: int) -> None:
    with pytest.raises(InvalidImageError, match="32 scans"):
        check_structure(jpeg_of_scans(8, count))


@given(st.sampled_from(MAGIC), st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_nothing_but_a_refusal_is_raised(magic: bytes, rest: bytes) -> None:
    with contextlib.suppress(InvalidImageError):
        assert check_structure(magic + rest) is None  # type: ignore[func-returns-value]
