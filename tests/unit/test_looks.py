"""Perceptual hashes: equal enough for other files of one picture, far apart for other pictures."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from common.images.looks import MAX_DISTANCE, Seen, look_of, near_duplicates
from tests.pictures import noise


def seen(image: Image.Image) -> Seen:
    return Seen(look_of(image), *image.size)


def reencoded(image: Image.Image, kind: str, **options: Any) -> Image.Image:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return Image.open(file).convert("RGB")


PICTURE = noise(160, 120, 1)


@pytest.mark.parametrize(
    "other",
    [
        reencoded(PICTURE, "JPEG", quality=90),
        reencoded(PICTURE, "JPEG", quality=20),
        reencoded(PICTURE, "WEBP", quality=40),
        PICTURE.resize((80, 60)),
        PICTURE.resize((321, 241)),
    ],
    ids=["JPEG 90", "JPEG 20", "WebP 40", "half the size", "twice the size"],
)
def test_lossy_and_resized_forms_look_the_same(other: Image.Image) -> None:
    assert near_duplicates([seen(PICTURE), seen(other)]) == [[0, 1]]


def test_other_pictures_look_different() -> None:
    assert near_duplicates([seen(noise(160, 120, seed)) for seed in range(100)]) == []


def test_flat_pictures_differ_by_their_colour_and_not_by_their_noise() -> None:
    red, blue = (Image.new("RGB", (64, 64), colour) for colour in ((200, 30, 30), (30, 30, 200)))
    assert near_duplicates([seen(red), seen(blue), seen(reencoded(red, "JPEG", quality=50))]) == [[0, 2]]


def test_another_shape_is_another_picture() -> None:
    assert near_duplicates([seen(PICTURE), seen(PICTURE.resize((120, 120)))]) == []


def test_a_look_is_deterministic_and_does_not_change_its_picture() -> None:
    before = PICTURE.tobytes()
    assert look_of(PICTURE) == look_of(PICTURE.copy()) == "31d89ce5c9498c747a7b81"
    assert PICTURE.tobytes() == before


@pytest.mark.parametrize("look", ["", "zz", "0" * 23])
def test_pictures_without_a_look_are_left_out(look: str) -> None:
    assert near_duplicates([Seen(look, 8, 8), Seen(look, 8, 8)]) == []


def test_what_looks_like_any_member_belongs_to_the_group() -> None:
    """Three in a row, each within the limit of the next; the first and the last are not of each other."""
    looks = [f"{(1 << bits) - 1:016x}000000" for bits in (0, MAX_DISTANCE, 2 * MAX_DISTANCE)]
    assert near_duplicates([Seen(look, 8, 8) for look in looks]) == [[0, 1, 2]]
    assert near_duplicates([Seen(looks[0], 8, 8), Seen(looks[2], 8, 8)]) == []


@given(st.lists(st.integers(0, 2**64 - 1), max_size=12))
def test_groups_are_disjoint_and_equal_looks_meet(gradients: list[int]) -> None:
    pictures = [Seen(f"{value:016x}808080", 8, 8) for value in gradients * 2]
    members = [index for group in near_duplicates(pictures) for index in group]
    assert sorted(members) == list(range(len(pictures)))
