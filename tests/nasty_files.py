"""Broken, hostile and odd files, all generated: `nasty_files()` gives each with whether it is to be accepted.

The bombs are small on disk and large in memory or in time.
"""

from __future__ import annotations

import struct

from tests.nasty_containers import (
    BMP,
    GIF,
    JPEG,
    MEBIBYTE,
    PICTURE,
    PNG,
    SIGNATURE,
    TIFF,
    WEBP,
    Two,
    bmp,
    bmps,
    gifs,
    jpegs,
    orientation_of,
    pngs,
    segment,
    tiff,
    tiffs,
    webps,
    with_chunks,
)
from tests.pictures import chunk, save

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
Files = dict[str, tuple[bytes, bool]]


def nasty_files() -> Files:
    """Name -> (bytes, whether it is accepted)."""
    files: Files = {}
    for part in (cut, pngs, jpegs, gifs, bmps, tiffs, webps, foreign, mixed, slow):
        for accepted, named in zip((True, False), part(), strict=True):
            files |= {f"{part.__name__}: {name}": (data, accepted) for name, data in named.items()}
    return files


def cut() -> Two:
    """Truncations and appendices of every container."""
    whole = dict(zip(FORMATS, (PNG, JPEG, WEBP, GIF, BMP, TIFF), strict=True))
    refused = {f"{kind} header only": data[:20] for kind, data in whole.items()}
    refused |= {f"{kind} half": data[: len(data) // 2] for kind, data in whole.items()}
    refused |= {f"{kind} without its first byte": data[1:] for kind, data in whole.items()}
    accepted = {f"{kind} with junk behind": data + bytes(1000) for kind, data in whole.items()}
    return accepted, refused


def foreign() -> Two:
    """What is a picture elsewhere, or none at all. Postscript would run another program."""
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) print\nshowpage\n%%EOF"
    refused = {
        "empty": b"",
        "one byte": b"x",
        "zeros": bytes(5000),
        "text": b"a picture of a cat\n" * 100,
        "HTML": b"<!doctype html><html><img src=x></html>",
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
        "PDF": b"%PDF-1.7\n1 0 obj\n",
        "EPS": postscript,
        "DOS EPS": b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 30, len(postscript)) + bytes(20) + postscript,
        "PPM with huge numbers": b"P3 99999999999999 99999999999999 65535 1 2 3",
        "PPM that counts down": b"P6 100000 100000 255\n",
        "XBM": b"#define x_width 8\n#define x_height 8\nstatic char x_bits[] = {\n0x00};",
        "FITS": b"SIMPLE  =                    T".ljust(2880),
        "ZIP": b"PK\x03\x04" + bytes(100),
        "ELF": b"\x7fELF" + bytes(100),
    }
    refused |= {
        kind: save(PICTURE, kind) for kind in ("ICO", "TGA", "PPM", "PCX", "ICNS", "JPEG2000", "AVIF", "DDS", "SGI")
    }
    return {}, refused


def mixed() -> Two:
    """Files of two kinds at once: the first bytes decide."""
    accepted = {
        "GIF that is a script": GIF + b"/*<script>1</script>*/",
        "PNG and then a JPEG": PNG + JPEG,
        "JPEG and then a ZIP": JPEG + b"PK\x05\x06" + bytes(18),
        "script in a comment": JPEG[:2] + segment(0xFE, b"<?php x(); ?>") + JPEG[2:],
    }
    refused = {
        "PNG header on a JPEG": SIGNATURE + JPEG,
        "JPEG header on a PNG": b"\xff\xd8\xff\xe0" + PNG,
        "GIF header on text": b"GIF89a" + b"text " * 40,
        "BMP header on HTML": b"BM<html><body>hello</body></html>" + bytes(60),
    }
    return accepted, refused


def slow() -> Two:
    """As many pieces as 4 MiB hold, each of which costs a step in Python, or a scan of the whole picture."""
    end = 13 + (3 << (GIF[10] & 7) + 1)
    many = 4 * MEBIBYTE
    refused = {
        "PNG of empty chunks": with_chunks(chunk(b"abCd", b"") * (many // 12)),
        "PNG of empty chunks behind its pixels": PNG[:-12] + chunk(b"abCd", b"") * (many // 12) + PNG[-12:],
        "JPEG of empty segments": JPEG[:2] + segment(0xEF, b"") * (many // 4) + JPEG[2:],
        "JPEG of fill bytes": JPEG[:2] + b"\xff" * many + JPEG[2:],
        "JPEG of a thousand scans": jpeg_of_scans(6000, 1000),
        "GIF of empty comments": GIF[:end] + b"!\xfe\1x\0" * (many // 5) + GIF[end:],
        "GIF of one-byte blocks": GIF[:end] + b"!\xfe" + b"\1x" * (many // 2) + b"\0" + GIF[end:],
        "GIF of bytes without meaning": GIF[:end] + b"\x7f" * many + GIF[end:],
        "TIFF of strips": tiff((273, 4, many // 4, 200), (278, 3, 1, 1), body=struct.pack("<I", 8) * (many // 4)),
        "TIFF of fractions": tiff((282, 5, many // 8, 200), body=struct.pack("<II", 1, 3) * (many // 8)),
        "BMP of empty runs": bmp(1000, 1000, 8, 1, b"\0\2\0\0" * (many // 4)),
    }
    return {"PNG whose EXIF is fractions": with_chunks(chunk(b"eXIf", orientation_of(many // 8)))}, refused


def jpeg_of_scans(side: int, count: int) -> bytes:
    """A grey progressive JPEG, all of whose scans say that nothing changes: few bytes, much work."""
    frame = segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    tables = [segment(0xC4, bytes([kind, 1]) + bytes(15) + value) for kind, value in ((0, b"\0"), (16, b"\xe0"))]
    blocks = (-(-side // 8)) ** 2
    start = segment(0xDA, b"\1\1\0\0\0\0") + bytes(-(-blocks // 8))
    scan = segment(0xDA, b"\1\1\0\1\1\0") + bytes(64)
    return (
        b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64) + frame + b"".join(tables) + start + scan * count + b"\xff\xd9"
    )
