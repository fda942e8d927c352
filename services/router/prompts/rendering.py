"""Messages to token ids: the chat template, with each picture as one marker token."""

from __future__ import annotations

from collections.abc import Sequence

from common.families import ImageMarkup
from services.router.prompts.chats import texts_of, texts_of_tools, to_chat, translated
from services.router.prompts.specials import Piece
from services.router.prompts.tokenizer import Chat, Tokenizer, Tools
from services.router.prompts.tools import describe
from triptych.errors import CheckpointError, InvalidArgumentError
from triptych.v1.types_pb2 import ContentPart, ImageRef, Message, Tool

_PROBE = "triptych probe"


class Renderer:
    """Token-identical to transformers' `apply_chat_template`, except where a user spells a special token."""

    def __init__(self, tokenizer: Tokenizer, image_token_id: int, markup: ImageMarkup | None = None) -> None:
        self._tokenizer = tokenizer
        self._image_token_id = image_token_id
        self._markup = markup
        self._check_template()
        self.knows_tools = self._shows_tools()
        """Whether the template shows functions to the model."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), scope: str = "") -> list[int]:
        """Token ids; every picture is one marker, in the order in which the template puts them.

        In a cache scope, messages that come again are not tokenized again.
        """
        return self._tokenizer.encode(self._pieces(messages, describe(tools)), scope)

    def _pieces(self, messages: Sequence[Message], tools: Tools) -> list[Piece]:
        specials = self._tokenizer.specials
        texts = [*map(texts_of, messages), texts_of_tools(tools)]
        threats = [specials.threatened_by(group) for group in texts]
        if not any(threats):
            return [Piece(self._text(to_chat(messages), tools), literal=False)]
        table = specials.disguise([text for group in texts for text in group])
        *tables, of_tools = [table if threat else {} for threat in threats]
        return specials.split(self._text(to_chat(messages, tables), translated(list(tools), of_tools)), table)

    def _text(self, chat: Chat, tools: Tools = ()) -> str:
        """The rendered chat; what users wrote is disguised by now, so every marker is the template's."""
        text = self._tokenizer.render(chat, tools)
        return text if self._markup is None else text.replace(self._markup.marker, self._markup.text)

    def _shows_tools(self) -> bool:
        chat = to_chat([Message(role="user", content=[ContentPart(text="?")])])
        try:
            return _PROBE in self._text(chat, describe([Tool(name=_PROBE)]))
        except InvalidArgumentError:
            return False

    def _check_template(self) -> None:
        """A template that drops text or pictures would lose them silently later; find out at start."""
        image, text = ContentPart(image=ImageRef()), ContentPart(text=_PROBE)
        chat = self._text(to_chat([Message(role="user", content=[image, text])]))
        ids = self._tokenizer.encode([Piece(chat, literal=False)])
        if _PROBE not in chat or ids.count(self._image_token_id) != 1:
            raise CheckpointError("the chat template does not show the text and the pictures of a message")
