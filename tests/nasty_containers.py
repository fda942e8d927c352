"""Broken, hostile and odd files of each container that is read, built byte by byte; see `tests.nasty_files`."""

from __future__ import annotations

import struct
import zlib
from functools import cache

from PIL import Image

from tests.pictures import chunk, noise, png, save

PICTURE = noise(64, 48)
PNG, JPEG, GIF, BMP, TIFF = (save(PICTURE, kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF"))
WEBP = save(PICTURE, "WEBP", lossless=True)
SIGNATURE, IHDR = PNG[:8], PNG[8:33]
MEBIBYTE = 2**20
Two = tuple[dict[str, bytes], dict[str, bytes]]
"""What is accepted, and what is refused."""


def with_chunks(*extra: bytes) -> bytes:
    """The good PNG with chunks behind its header."""
    return SIGNATURE + IHDR + b"".join(extra) + PNG[33:]


@cache
def _bomb() -> bytes:
    return zlib.compress(bytes(100_000_000))


def _wrong_crc() -> bytes:
    return SIGNATURE + IHDR[:-4] + bytes(4) + PNG[33:]


def pngs() -> Two:
    """Accepted and refused PNGs."""
    accepted = {
        "unknown chunk": with_chunks(chunk(b"abCd", b"x" * 99)),
        "damaged EXIF": with_chunks(chunk(b"eXIf", b"II*\0\xff\xff\xff\xff")),
        "EXIF of a megabyte of values": with_chunks(chunk(b"eXIf", orientation_of(2**18))),
        "animation without frames": with_chunks(chunk(b"acTL", struct.pack(">II", 0, 0))),
        "damaged ICC profile": with_chunks(chunk(b"iCCP", b"x\0\0" + zlib.compress(b"no profile"))),
        "one row missing": png(8, 9, 8, 2, [bytes(24)] * 8),
        "palette of no whole colour": png(8, 8, 8, 3, [bytes(8)] * 8, PLTE=b"\0"),
        "pixels that inflate to far more": png(8, 8, 8, 2, [bytes(20 * MEBIBYTE)]),
        "palette of 256 for 1 bit": png(16, 1, 1, 3, [b"\xaa\x55"], PLTE=bytes(range(256)) * 3),
    }
    refused = {
        "1-bit bomb": png(20_000, 20_000, 1, 0, [bytes(2500)]),
        "largest sides": png(2**31 - 1, 2**31 - 1, 8, 2, [bytes(3)]),
        "no width": png(0, 5, 8, 2, [b""]),
        "no height": png(5, 0, 8, 2, []),
        "wrong checksum": _wrong_crc(),
        "chunk longer than the file": SIGNATURE + IHDR + b"\x7f\xff\xff\xffIDATx",
        "pixels that are no zlib": SIGNATURE + IHDR + chunk(b"IDAT", b"zzzz") + chunk(b"IEND", b""),
        "no pixels": SIGNATURE + IHDR + chunk(b"IEND", b""),
        "impossible depth": png(8, 8, 3, 2, [bytes(24)] * 8),
        "palette without colours": png(8, 8, 8, 3, [bytes(8)] * 8),
        "zTXt bomb": with_chunks(chunk(b"zTXt", b"key\0\0" + _bomb())),
        "iTXt bomb": with_chunks(chunk(b"iTXt", b"key\0\1\0\0\0" + _bomb())),
        "iCCP bomb": with_chunks(chunk(b"iCCP", b"icc\0\0" + _bomb())),
        "many small zTXt": with_chunks(*[chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(900_000), 9))] * 100),
        "100:1 and more": save(Image.new("RGB", (1, 10_000)), "PNG"),
    }
    return accepted, refused


def segment(marker: int, body: bytes) -> bytes:
    """A segment of a JPEG."""
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body


def _resized_jpeg(width: int, height: int) -> bytes:
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


def jpegs() -> Two:
    """Accepted and refused JPEGs."""
    mpo = save(PICTURE, "MPO", save_all=True, append_images=[PICTURE])
    accepted = {
        "thumbnail in EXIF": JPEG[:2] + segment(0xE1, b"Exif\0\0" + JPEG) + JPEG[2:],
        "EXIF that is none": JPEG[:2] + segment(0xE1, b"Exif\0\0MM") + JPEG[2:],
        "more rows than there are": _resized_jpeg(64, 12_000),
        "two pictures in one": mpo,
        "progressive": save(PICTURE, "JPEG", progressive=True),
        "CMYK": save(PICTURE.convert("CMYK"), "JPEG"),
    }
    refused = {
        "65535 x 65535": _resized_jpeg(65_535, 65_535),
        "no height": _resized_jpeg(64, 0),
        "without its last 128 bytes": JPEG[:-128],
        "without tables": JPEG[: JPEG.index(b"\xff\xdb")] + JPEG[JPEG.index(b"\xff\xc0") :],
        "five components": JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x17\x08"),
        "no end marker": JPEG[:-2],
        "only a start": b"\xff\xd8\xff",
    }
    return accepted, refused


def gif(screen: tuple[int, int], frame: tuple[int, int], disposal: int = 0, transparent: bool = False) -> bytes:
    """A GIF of a few bytes: `screen` and `frame` are (width, height)."""
    control = struct.pack("<BBBBHBB", 0x21, 0xF9, 4, disposal << 2 | transparent, 0, 0, 0)
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + bytes(6)
    return head + control + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x4c\x01\x00;"


def gifs() -> Two:
    """Accepted and refused GIFs."""
    frames = [Image.new("L", (16, 16), shade) for shade in range(200)]
    accepted = {
        "frame larger than its screen": GIF[:6] + struct.pack("<HH", 1, 1) + GIF[10:],
        "200 frames": save(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "transparent": save(PICTURE.quantize(16), "GIF", transparency=3),
    }
    refused = {
        "screen bomb": gif((60_000, 60_000), (1, 1)),
        "frame bomb": gif((8, 8), (60_000, 60_000)),
        "frame bomb that is disposed of": gif((8, 8), (60_000, 60_000), disposal=2),
        "frame bomb that is restored": gif((8, 8), (60_000, 60_000), disposal=3, transparent=True),
        "no screen": gif((0, 0), (0, 0)),
        "no frame": GIF[:13] + b";",
        "code size of 13": gif((2, 2), (2, 2)).replace(b"\x02\x02\x4c\x01", b"\x0d\x02\x4c\x01"),
    }
    return accepted, refused


def bmp(width: int, height: int, bits: int, compression: int, body: bytes, colours: int = 0) -> bytes:
    """A BMP with a palette of zeros where it needs one."""
    palette = bytes(4 * (colours or (1 << bits if bits <= 8 else 0)))
    start = 54 + len(palette)
    head = struct.pack("<IHHIIiiHHII", start + len(body), 0, 0, start, 40, width, height, 1, bits, compression, 0)
    return b"BM" + head + struct.pack("<iiII", 0, 0, colours, 0) + palette + body


def bmps() -> Two:
    """Accepted and refused BMPs."""
    accepted = {
        "run lengths": bmp(8, 2, 8, 1, b"\x08\x01\0\0\x08\x02\0\1"),
        "top down": bmp(2, -2, 24, 0, bytes(16)),
        "16 bit": bmp(2, 2, 16, 0, bytes(8)),
    }
    refused = {
        "large sides": bmp(15_000, 15_000, 24, 0, b""),
        "negative width": bmp(-2, 2, 24, 0, bytes(16)),
        "pixels missing": bmp(100, 100, 24, 0, bytes(99)),
        "unknown compression": bmp(2, 2, 24, 9, bytes(16)),
        "7 bits": bmp(2, 2, 7, 0, bytes(16)),
        "palette of 70,000": bmp(2, 2, 8, 0, b"", colours=70_000)[:200],
        "run-length bomb": bmp(6000, 6000, 4, 2, (b"\xff\x11" * 24 + b"\0\0") * 6000),
    }
    return accepted, refused


def tiff(*entries: tuple[int, int, int, int], body: bytes = bytes(768), following: int = 0) -> bytes:
    """A little-endian TIFF; `body` begins at 200. Entries are (tag, type, count, value or offset)."""
    sixteen = [(256, 3, 1, 16), (257, 3, 1, 16), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1)]
    tags = {entry[0]: entry for entry in (*sixteen, (273, 4, 1, 200), (278, 3, 1, 16), (279, 4, 1, 256), *entries)}
    packed = b"".join(struct.pack("<HHII", *tags[tag]) for tag in sorted(tags))
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + packed + struct.pack("<I", following)
    return head.ljust(200, b"\0") + body


def orientation_of(values: int) -> bytes:
    """EXIF whose orientation is so many fractions."""
    entry = struct.pack("<HHII", 0x112, 5, values, 26)
    return b"II*\0\x08\0\0\0\x01\0" + entry + bytes(4) + struct.pack("<II", 1, 3) * values


def tiffs() -> Two:
    """Accepted and refused TIFFs."""
    pages = [noise(32, 32, seed) for seed in range(20)]
    accepted = {
        "directory that follows itself": tiff(following=8),
        "directory behind the end": tiff(following=2**31),
        "sub-directory that is its parent": tiff((330, 4, 1, 8)),
        "EXIF directory that is its parent": tiff((34665, 4, 1, 8)),
        "20 pages": save(pages[0], "TIFF", save_all=True, append_images=pages[1:]),
        "deflated": save(PICTURE, "TIFF", compression="tiff_deflate"),
    }
    refused = {
        "no width": tiff((256, 3, 1, 0)),
        "large sides": tiff((256, 4, 1, 100_000), (257, 4, 1, 100_000)),
        "strip behind the end": tiff((273, 4, 1, 2**31)),
        "unknown compression": tiff((259, 3, 1, 999)),
        "unknown colours": tiff((262, 3, 1, 77)),
        "300 samples a pixel": tiff((277, 3, 1, 300)),
        "directory that is not there": b"II*\0" + struct.pack("<I", 2**31),
        "values without end": tiff((282, 5, 2**31, 200)),
        "floating point": save(Image.new("F", (8, 8)), "TIFF"),
    }
    return accepted, refused


def _riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for name, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def webp_header(width: int, height: int) -> bytes:
    """An extended WebP without pixels."""
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return _riff((b"VP8X", bytes(4) + sides))


def webps() -> Two:
    """Accepted and refused WebPs."""
    frames = [Image.new("RGB", (16, 16), (shade, 0, 0)) for shade in range(9)]
    accepted = {
        "animated": save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True),
        "lossy with alpha": save(Image.new("RGBA", (16, 16), (1, 2, 3, 4)), "WEBP"),
    }
    refused = {
        "header bomb": webp_header(16_000, 16_000),
        "no pixels": webp_header(16, 16),
        "empty": _riff(),
        "foreign chunk": _riff((b"VP8 ", b"no picture")),
        "length of zero": WEBP[:4] + bytes(4) + WEBP[8:],
    }
    return accepted, refused
