"""Decoding: every lossless form of one picture has one identity, and it is upright on white."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageDraw

from common.images import DecodedImage, ImageLimits, decode_image
from common.images.reader import FORMATS
from tests.pictures import png, save

LIMITS = ImageLimits()
WHITE = (255, 255, 255)


def decode(data: bytes) -> DecodedImage:
    return decode_image(data, LIMITS)


def noise(width: int, height: int, seed: int = 7) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("PNG", {"compress_level": 0}),
        ("BMP", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_every_lossless_file_of_a_picture_has_one_id(kind: str, options: dict[str, Any]) -> None:
    picture = noise(19, 11)
    assert decode(save(picture, kind, **options)).image_id == decode(save(picture, "PNG")).image_id


def test_the_size_is_upright_width_and_height() -> None:
    decoded = decode(save(noise(19, 11), "PNG"))
    assert (decoded.width, decoded.height, decoded.image.mode) == (19, 11, "RGB")


def test_equal_bytes_in_another_shape_are_another_picture() -> None:
    data = noise(20, 12).tobytes()
    shapes = ((20, 12), (12, 20), (60, 4))
    ids = {decode(save(Image.frombytes("RGB", shape, data), "PNG")).image_id for shape in shapes}
    assert len(ids) == 3


def test_equal_indices_in_another_palette_or_as_grey_are_other_pictures() -> None:
    indices = Image.new("L", (9, 9), 1)
    pictures = [indices]
    for colours in ([0, 0, 255, 255, 0, 0], [255, 0, 0, 0, 0, 255]):
        picture = Image.frombytes("P", (9, 9), indices.tobytes())
        picture.putpalette(colours)
        pictures.append(picture)
    decoded = [decode(save(picture, "PNG")) for picture in pictures]
    assert [one.image.getpixel((0, 0)) for one in decoded] == [(1, 1, 1), (255, 0, 0), (0, 0, 255)]
    assert len({one.image_id for one in decoded}) == 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_orientation_tag_is_applied_once(kind: str, orientation: int) -> None:
    upright = Image.new("RGB", (48, 32), WHITE)
    ImageDraw.Draw(upright).rectangle((0, 0, 15, 15), (200, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    turned = _undo(upright, orientation)
    decoded = decode(save(turned, kind, exif=exif, **options))
    assert decoded.image.size == (48, 32)
    assert np.abs(np.asarray(decoded.image, int) - np.asarray(upright, int)).max() <= 3


def _undo(upright: Image.Image, orientation: int) -> Image.Image:
    # The stored picture, such that the transposition that the tag demands gives `upright`.
    inverse = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    names = {0: "FLIP_LEFT_RIGHT", 1: "FLIP_TOP_BOTTOM", 2: "ROTATE_90", 3: "ROTATE_180", 4: "ROTATE_270"}
    names |= {5: "TRANSPOSE", 6: "TRANSVERSE"}
    if orientation == 1:
        return upright
    return upright.transpose(getattr(Image.Transpose, names[inverse[orientation]]))


def test_other_exif_does_not_change_the_id() -> None:
    exif = Image.Exif()
    exif[0x010E] = "a caption"
    assert decode(save(noise(9, 9), "PNG", exif=exif)).image_id == decode(save(noise(9, 9), "PNG")).image_id


# The process-wide filter does this; pytest replaces the filters for every test.
@pytest.mark.filterwarnings("ignore:Corrupt EXIF:UserWarning")
def test_damaged_exif_is_ignored() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + bytes(7)
    assert decode(save(noise(16, 16), "JPEG", exif=exif)).image.size == (16, 16)


def glyph() -> Image.Image:
    """A black stroke on a transparent ground whose hidden colour is black, too."""
    picture = Image.new("RGBA", (12, 8), (0, 0, 0, 0))
    ImageDraw.Draw(picture).rectangle((3, 2, 8, 5), (0, 0, 0, 255))
    return picture


def opaque_glyph() -> Image.Image:
    picture = Image.new("RGB", (12, 8), WHITE)
    ImageDraw.Draw(picture).rectangle((3, 2, 8, 5), (0, 0, 0))
    return picture


def _grey_rows(depth: int, stroke: int, ground: int) -> list[bytes]:
    inside = np.asarray(glyph())[..., 3] > 0
    rows = []
    for line in inside:
        bits = "".join(format(stroke if part else ground, f"0{depth}b") for part in line)
        rows.append(int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big"))
    return rows


def _rgb16_rows() -> list[bytes]:
    inside = np.asarray(glyph())[..., 3] > 0
    return [b"".join(bytes(6) if part else b"\x12\x34" * 3 for part in line) for line in inside]


def _palette(transparency: bytes | int) -> bytes:
    picture = Image.frombytes("P", (12, 8), bytes((np.asarray(glyph())[..., 3] > 0).astype(np.uint8)))
    picture.putpalette([7, 7, 7, 0, 0, 0])
    return save(picture, "PNG", transparency=transparency)


def _gif() -> bytes:
    picture = Image.frombytes("P", (12, 8), bytes((np.asarray(glyph())[..., 3] > 0).astype(np.uint8)))
    picture.putpalette([7, 7, 7, 0, 0, 0])
    return save(picture, "GIF", transparency=0)


TRANSPARENT_FORMS: dict[str, Callable[[], bytes]] = {
    "RGBA PNG": lambda: save(glyph(), "PNG"),
    "RGBA WebP": lambda: save(glyph(), "WEBP", lossless=True, exact=True),
    "RGBA TIFF": lambda: save(glyph(), "TIFF"),
    "LA PNG": lambda: save(glyph().convert("LA"), "PNG"),
    "palette with alphas": lambda: _palette(b"\x00\xff"),
    "palette with one transparent entry": lambda: _palette(0),
    "GIF": _gif,
    "1-bit grey with a transparent value": lambda: png(12, 8, 1, 0, _grey_rows(1, 0, 1), tRNS=b"\0\1"),
    "2-bit grey with a transparent value": lambda: png(12, 8, 2, 0, _grey_rows(2, 0, 2), tRNS=b"\0\2"),
    "4-bit grey with a transparent value": lambda: png(12, 8, 4, 0, _grey_rows(4, 0, 5), tRNS=b"\0\5"),
    "8-bit grey with a transparent value": lambda: png(12, 8, 8, 0, _grey_rows(8, 0, 77), tRNS=b"\0\x4d"),
    "16-bit grey with a transparent value": lambda: png(12, 8, 16, 0, _grey_rows(16, 0, 4660), tRNS=b"\x12\x34"),
    "16-bit colour with a transparent value": lambda: png(12, 8, 16, 2, _rgb16_rows(), tRNS=b"\x12\x34" * 3),
}


@pytest.mark.parametrize("name", list(TRANSPARENT_FORMS))
def test_every_form_of_transparency_is_put_on_white(name: str) -> None:
    decoded = decode(TRANSPARENT_FORMS[name]())
    assert decoded.image_id == decode(save(opaque_glyph(), "PNG")).image_id


def test_half_transparency_is_mixed_with_white() -> None:
    decoded = decode(save(Image.new("RGBA", (9, 9), (255, 0, 0, 128)), "PNG"))
    assert decoded.image.getpixel((4, 4)) == (255, 127, 127)


GREYS = np.arange(0, 240, 3, dtype=np.uint8).reshape(8, 10)


def grey_id() -> str:
    return decode(save(Image.fromarray(GREYS).convert("RGB"), "PNG")).image_id


GREY_FORMS: dict[str, Callable[[], bytes]] = {
    "8-bit PNG": lambda: save(Image.fromarray(GREYS), "PNG"),
    "16-bit PNG": lambda: save(Image.fromarray(GREYS.astype(np.uint16) * 257), "PNG"),
    "16-bit TIFF": lambda: save(Image.fromarray(GREYS.astype(np.uint16) * 257), "TIFF"),
    "8-bit BMP": lambda: save(Image.fromarray(GREYS), "BMP"),
    "palette PNG": lambda: save(Image.fromarray(GREYS).quantize(256), "PNG"),
    "opaque LA PNG": lambda: save(Image.fromarray(GREYS).convert("LA"), "PNG"),
}


@pytest.mark.parametrize("name", list(GREY_FORMS))
def test_grey_pictures_of_any_depth_equal_their_colour_form(name: str) -> None:
    assert decode(GREY_FORMS[name]()).image_id == grey_id()


def test_16_bit_grey_without_transparency_keeps_its_darkest_value() -> None:
    data = png(2, 1, 16, 0, [b"\x00\xff\xff\x00"])
    assert [decode(data).image.getpixel((x, 0)) for x in (0, 1)] == [(0, 0, 0), (255, 255, 255)]


def test_1_bit_pictures_are_black_and_white() -> None:
    bilevel = opaque_glyph().convert("1")
    assert decode(save(bilevel, "PNG")).image_id == decode(save(opaque_glyph(), "PNG")).image_id


CMYK = noise(24, 16).convert("CMYK")


def test_a_cmyk_photograph_keeps_its_colours() -> None:
    red = Image.new("RGB", (16, 16), (200, 30, 40)).convert("CMYK")
    pixel = np.asarray(decode(save(red, "JPEG", quality=100)).image, int)[8, 8]
    assert np.abs(pixel - (200, 30, 40)).max() <= 4


def test_a_cmyk_file_without_loss_has_the_id_of_its_colours() -> None:
    assert decode(save(CMYK, "TIFF")).image_id == decode(save(CMYK.convert("RGB"), "PNG")).image_id


def test_cmyk_in_a_jpeg_is_inverted_as_adobe_writes_it_with_and_without_its_mark() -> None:
    data = save(CMYK, "JPEG", quality=100)
    at = data.index(b"\xff\xee")
    bare = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
    assert b"Adobe" in data and b"Adobe" not in bare
    assert decode(bare).image_id == decode(data).image_id


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_a_colour_profile_changes_nothing(kind: str) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    options = {"lossless": True} if kind == "WEBP" else {}
    tagged = save(noise(9, 9), kind, icc_profile=profile, **options)
    assert profile in tagged or kind == "PNG"
    assert decode(tagged).image_id == decode(save(noise(9, 9), kind, **options)).image_id


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame_counts(kind: str) -> None:
    frames = [Image.new("RGB", (14, 10), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = save(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert decode(data).image_id == decode(save(frames[0], "PNG")).image_id


def test_only_the_documented_formats_are_opened() -> None:
    assert FORMATS == ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


@pytest.mark.parametrize(("width", "height"), [(3, 3), (26, 28), (257, 27), (200, 1), (1, 200), (60, 80), (80, 60)])
def test_small_narrow_and_portrait_pictures_keep_their_size(width: int, height: int) -> None:
    decoded = decode(save(noise(width, height), "PNG"))
    assert decoded.image.size == (decoded.width, decoded.height) == (width, height)
