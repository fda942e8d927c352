"""Decoding: what is refused, with which sentence, and at what cost."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
import tracemalloc
import warnings
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from common.images import ImageLimits, decode_image
from common.images.limits import PIXEL_CEILING
from tests.nasty_containers import gif, webp_header
from tests.pictures import chunk, png, save
from tests.unit.test_pixels import noise
from triptych.errors import ConfigError, InvalidImageError

LIMITS = ImageLimits()
MEGABYTE = 2**20


def refusal(data: bytes, limits: ImageLimits = LIMITS) -> str:
    with pytest.raises(InvalidImageError) as caught:
        decode_image(data, limits)
    return caught.value.message


BOMBS: dict[str, Callable[[], bytes]] = {
    "1-bit PNG": lambda: png(20_000, 20_000, 1, 0, [bytes(2500)]),
    "PNG below Pillow's own limit": lambda: png(8000, 7000, 1, 0, [bytes(1000)]),
    "PNG of the largest sides": lambda: png(2**31 - 1, 2**31 - 1, 8, 2, [bytes(3)]),
    "GIF screen": lambda: gif((60_000, 60_000), (1, 1)),
    "GIF frame": lambda: gif((8, 8), (60_000, 60_000)),
    "GIF frame that is disposed of": lambda: gif((8, 8), (60_000, 60_000), disposal=2),
    "GIF frame restored": lambda: gif((8, 8), (60_000, 60_000), disposal=3, transparent=True),
    "WebP": lambda: webp_header(16_000, 16_000),
    "BMP": lambda: b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 15_000, 15_000, 1, 24, 0, 0, 0, 0, 0, 0),
}


@pytest.mark.parametrize("name", list(BOMBS))
def test_a_bomb_is_refused_from_its_header(name: str) -> None:
    data = BOMBS[name]()
    tracemalloc.start()
    with warnings.catch_warnings(record=True) as caught:
        refusal(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * MEGABYTE
    assert caught == []


def test_resident_memory_stays_when_bombs_are_refused() -> None:
    for bomb in BOMBS.values():
        refusal(bomb())
    before = _resident_bytes()
    for bomb in BOMBS.values():
        refusal(bomb())
    assert _resident_bytes() - before < 50 * MEGABYTE


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def _text_bomb(size: int, count: int = 1) -> bytes:
    text = b"key\0\0" + zlib.compress(bytes(size), 9)
    start, end = save(noise(8, 8), "PNG").split(b"\0\0\0\rIHDR")
    return start + b"\0\0\0\rIHDR" + end[:17] + chunk(b"zTXt", text) * count + end[17:]


@pytest.mark.parametrize(("size", "count"), [(100_000_000, 1), (1_000_000, 100)])
def test_compressed_text_does_not_expand(size: int, count: int) -> None:
    data = _text_bomb(size, count)
    tracemalloc.start()
    refusal(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * MEGABYTE


def test_text_after_the_pixels_does_not_expand() -> None:
    whole = save(noise(8, 8), "PNG")
    bomb = chunk(b"zTXt", b"key\0\0" + zlib.compress(bytes(100_000_000), 9))
    tracemalloc.start()
    refusal(whole[:-12] + bomb + whole[-12:])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * MEGABYTE


def test_ordinary_text_is_allowed() -> None:
    assert decode_image(_text_bomb(1000), LIMITS).width == 8


@pytest.mark.parametrize("size", [(300, 1), (1, 300), (1, 10_000), (10_000, 1)])
def test_a_narrow_picture_is_refused_by_its_ratio_on_both_axes(size: tuple[int, int]) -> None:
    assert "aspect ratio is 200:1" in refusal(save(Image.new("RGB", size), "PNG"))


def test_each_limit_is_named_with_its_number() -> None:
    data = save(noise(40, 30), "PNG")
    assert "limit is 100" in refusal(data, ImageLimits(max_bytes=100))
    assert "limit is 1199 pixels" in refusal(data, ImageLimits(max_pixels=1199))
    assert "limit of a side is 39" in refusal(data, ImageLimits(max_side=39))


def test_a_picture_at_every_limit_is_accepted() -> None:
    data = save(noise(40, 20), "PNG")
    limits = ImageLimits(max_bytes=len(data), max_pixels=800, max_side=40, max_aspect=2)
    assert decode_image(data, limits).width == 40


def _whole(kind: str) -> bytes:
    return save(noise(64, 48), kind)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_refused(kind: str, share: float) -> None:
    data = _whole(kind)
    refusal(data[: int(len(data) * share)])


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_without_its_last_128_bytes_is_refused(progressive: bool) -> None:
    assert "truncated" in refusal(save(noise(64, 48), "JPEG", progressive=progressive)[:-128])


@pytest.mark.parametrize("data", [b"", b"x", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7\n", bytes(1000)])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    assert refusal(data)


@pytest.mark.parametrize("kind", ["EPS", "ICO", "PPM", "TGA", "PDF"])
def test_formats_outside_the_list_are_refused(kind: str) -> None:
    assert "accepted are PNG" in refusal(_whole(kind))


def test_samples_without_a_known_range_are_refused() -> None:
    floats = Image.fromarray(np.linspace(0, 1, 100, dtype=np.float32).reshape(10, 10))
    assert "mode F" in refusal(save(floats, "TIFF"))


def test_a_good_picture_after_bad_ones_is_decoded() -> None:
    for bomb in BOMBS.values():
        refusal(bomb())
    refusal(_whole("JPEG")[:-128])
    assert decode_image(_whole("PNG"), LIMITS).height == 48


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]), st.data())
def test_damage_anywhere_gives_a_picture_or_our_refusal(kind: str, draw: st.DataObject) -> None:
    data = bytearray(_whole(kind))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, min(len(data), 200) - 1))] = draw.draw(st.integers(0, 255))
    try:
        decoded = decode_image(bytes(data), LIMITS)
    except InvalidImageError:
        return
    assert decoded.image.size == (decoded.width, decoded.height)


def test_threads_agree() -> None:
    data, ids = _whole("PNG"), []
    threads = [threading.Thread(target=lambda: ids.append(decode_image(data, LIMITS).image_id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_aspect": 0}, {"max_pixels": PIXEL_CEILING + 1}])
def test_senseless_limits_stop_the_process(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ImageLimits(**limits)


def test_a_process_prints_no_warnings_of_pillow() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + bytes(7)
    files = [save(noise(16, 16), "JPEG", exif=exif), BOMBS["PNG below Pillow's own limit"](), _too_large_png()]
    program = """
import sys
from common.images import ImageLimits, decode_image
from triptych.errors import InvalidImageError
for text in sys.argv[1:]:
    try:
        print(decode_image(bytes.fromhex(text), ImageLimits()).width)
    except InvalidImageError as error:
        print(error.message)
"""
    command = [sys.executable, "-c", program, *(data.hex() for data in files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "16"
    assert "limit is 40000000" in done.stdout.splitlines()[2]


def _too_large_png() -> bytes:
    # Between one and two times the bound given to Pillow, where it only warns.
    return png(9000, 9000, 1, 0, [bytes(1125)])
