"""Gemma's pictures stand in a paragraph of their own, which has to be there before the text is tokenized."""

from __future__ import annotations

import pytest

from common.families import Family, load_family
from services.router.prompts.rendering import Renderer
from services.router.prompts.tokenizer import Tokenizer
from tests.checkpoints import CheckpointCache
from tests.integration.chats import CHATS
from tests.reference import Reference
from triptych.v1.types_pb2 import ContentPart, ImageRef, Message

IMAGE = ContentPart(image=ImageRef(digest="0" * 64))


@pytest.fixture(scope="module")
def family(checkpoints: CheckpointCache) -> Family:
    return load_family(checkpoints.get("gemma3"))


@pytest.fixture(scope="module")
def renderer(checkpoints: CheckpointCache, family: Family) -> Renderer:
    tokenizer = Tokenizer.load(checkpoints.get("gemma3"), family.image_token_id)
    return Renderer(tokenizer, family.image_token_id, family.image_markup)


def messages_of(name: str) -> list[Message]:
    def parts(content: object) -> list[ContentPart]:
        if isinstance(content, str):
            return [ContentPart(text=content)]
        assert isinstance(content, list)
        return [IMAGE if each["type"] == "image" else ContentPart(text=each["text"]) for each in content]

    return [Message(role=each["role"], content=parts(each["content"])) for each in CHATS[name][0]]


@pytest.mark.parametrize("name", CHATS)
def test_prompts_are_those_of_transformers(
    name: str, checkpoints: CheckpointCache, family: Family, renderer: Renderer
) -> None:
    """D04: with begin and end tokens and line breaks around it, a picture is still one span."""
    images = CHATS[name][1]
    expanded, spans = family.expand(renderer.render(messages_of(name)), [family.layout(*each.size) for each in images])
    expected = Reference(checkpoints.get("gemma3")).inputs(*CHATS[name])
    assert expanded == expected["input_ids"][0].tolist()
    covered = [any(span.offset <= index < span.end for span in spans) for index in range(len(expanded))]
    assert covered == expected["token_type_ids"][0].bool().tolist()


@pytest.mark.parametrize("typed", ["<start_of_image>", "<image_soft_token>", "<start_of_image", "<end_of_image>"])
def test_no_text_becomes_a_picture(typed: str, family: Family, renderer: Renderer) -> None:
    ids = renderer.render([Message(role="user", content=[ContentPart(text=f"look {typed} here"), IMAGE])])
    assert ids.count(family.image_token_id) == 1
