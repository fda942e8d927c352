"""Messages to token ids: the chat template, with each picture as one marker token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.router.specials import Piece
from services.router.tokenizer import Chat, Tokenizer
from triptych.errors import CheckpointError
from triptych.v1.types_pb2 import ContentPart, ImageRef, Message

_PROBE = "triptych probe"


class Renderer:
    """Token-identical to transformers' `apply_chat_template`, except where a user spells a special token."""

    def __init__(self, tokenizer: Tokenizer, image_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._image_token_id = image_token_id
        self._check_template()

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids; every picture is one marker, in the order in which the template puts them."""
        return self._tokenizer.encode(self._pieces(messages))

    def _pieces(self, messages: Sequence[Message]) -> list[Piece]:
        specials = self._tokenizer.specials
        texts = [[part.text for part in message.content if part.HasField("text")] for message in messages]
        threats = [specials.threatened_by(group) for group in texts]
        if not any(threats):
            return [Piece(self._tokenizer.render(to_chat(messages)), literal=False)]
        table = specials.disguise([text for group in texts for text in group])
        tables = [table if threat else {} for threat in threats]
        return specials.split(self._tokenizer.render(to_chat(messages, tables)), table)

    def _check_template(self) -> None:
        """A template that drops text or pictures would lose them silently later; find out at start."""
        image, text = ContentPart(image=ImageRef()), ContentPart(text=_PROBE)
        chat = self._tokenizer.render(to_chat([Message(role="user", content=[image, text])]))
        ids = self._tokenizer.encode([Piece(chat, literal=False)])
        if _PROBE not in chat or ids.count(self._image_token_id) != 1:
            raise CheckpointError("the chat template does not show the text and the pictures of a message")


def to_chat(messages: Sequence[Message], tables: Sequence[dict[int, str]] | None = None) -> Chat:
    """Messages as templates read them; `tables` (one a message) translate characters of the texts."""
    pairs = zip(messages, tables or [{}] * len(messages), strict=True)
    return [
        {"role": message.role, "content": [_part(part, table) for part in message.content]} for message, table in pairs
    ]


def _part(part: ContentPart, table: dict[int, str]) -> dict[str, Any]:
    if part.HasField("image"):
        return {"type": "image"}
    return {"type": "text", "text": part.text.translate(table)}
