"""Every accepted form of a conversation, and what is refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from triptych import Image, Message, assistant, system, user
from triptych.digests import file_digest
from triptych.errors import InvalidArgumentError, InvalidImageError
from triptych.messages import as_messages, to_wire

IMAGE = Image.from_bytes(b"picture")
DATA_URL = "data:image/png;base64," + base64.b64encode(b"picture").decode()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", [user("hi")]),
        (IMAGE, [user(IMAGE)]),
        ([IMAGE, "hi"], [user(IMAGE, "hi")]),
        (user("hi"), [user("hi")]),
        ({"role": "user", "content": "hi"}, [user("hi")]),
        ([system("be brief"), {"role": "assistant", "content": ["ok"]}], [system("be brief"), assistant("ok")]),
        ([{"role": "user", "content": IMAGE}], [user(IMAGE)]),
        ([{"role": "assistant", "content": None}], [Message("assistant", ())]),
        ([{"type": "text", "text": "hi"}], [user("hi")]),
        ([{"type": "image", "image": IMAGE}], [user(IMAGE)]),
        ([{"type": "image", "image": IMAGE.digest}], [user(Image(IMAGE.digest))]),
        ([{"type": "image_url", "image_url": {"url": DATA_URL}}], [user(IMAGE)]),
        ([], []),
    ],
)
def test_accepted_forms(prompt: Any, expected: list[Message]) -> None:
    assert as_messages(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (iter(["hi"]), "prompt"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
        ([{"type": "video"}], "messages[0].content[0]"),
        (["hi", 3], "messages[0].content[1]"),
        ([user("hi"), "and now a part"], "messages[1]"),
        ([user("hi"), {"role": "user", "content": ["ok", b"x"]}], "messages[1].content[1]"),
    ],
)
def test_refused_forms_name_the_piece(prompt: Any, param: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        as_messages(prompt)
    assert caught.value.param == param


@pytest.mark.parametrize("url", ["http://example.test/a.png", "data:text/html;base64,aGk=", "data:image/png;base64,a!"])
def test_only_good_data_urls_are_read(url: str) -> None:
    with pytest.raises(InvalidImageError):
        Image.from_data_url(url)


def test_data_urls_may_lack_their_padding() -> None:
    assert Image.from_data_url(DATA_URL.rstrip("=")) == IMAGE


def test_detail_travels_with_the_picture() -> None:
    part = {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}}
    assert as_messages([part])[0].content == (Image.from_bytes(b"picture", "low"),)


def test_a_file_is_named_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"picture")
    assert Image.from_file(tmp_path / "a.png").digest == file_digest(b"picture")


def test_an_unreadable_file_is_an_invalid_image(tmp_path: Path) -> None:
    with pytest.raises(InvalidImageError, match="No such file"):
        Image.from_file(tmp_path / "none.png")


def test_pixels_never_enter_a_message() -> None:
    wire = to_wire(user(IMAGE, "hi"))
    assert b"picture" not in wire.SerializeToString()
    assert [part.WhichOneof("part") for part in wire.content] == ["image", "text"]
