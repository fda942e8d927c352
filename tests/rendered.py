"""Chats as token ids with one image marker a picture: what the router sends on, without the router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.families import Family


def marked_ids(tokenizer: Any, family: Family, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids of the rendered chat."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    if family.image_markup is not None:
        text = text.replace(family.image_markup.marker, family.image_markup.text)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids
