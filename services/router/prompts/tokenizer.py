"""The checkpoint's tokenizer and chat template."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from services.router.prompts.segments import Segments, separable
from services.router.prompts.specials import Piece, SpecialTokens
from triptych.errors import CheckpointError, InvalidArgumentError

Chat = Sequence[dict[str, Any]]
Tools = Sequence[dict[str, Any]]

# What templates that ask for today's date are told, and what Llama's fall back to. With the real date every cached
# prefix would be lost at midnight, and two routers could disagree.
_DAY = dt.date(2024, 7, 26)
_DIRECTIVES = "aAbBdejmUwWyYHIMSp"


class Tokenizer:
    """Text to ids and back; safe to share between threads.

    `image_token_id` counts as special even where the checkpoint forgot to say so.
    """

    def __init__(self, pretrained: Any, image_token_id: int) -> None:
        self._pretrained = pretrained
        if isinstance(pretrained.chat_template, str):
            pretrained.chat_template = _undated(pretrained.chat_template)
        self._backend = pretrained.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._mark_special(image_token_id)
        added = self._backend.get_added_tokens_decoder()
        self._special = {index: token.content for index, token in added.items() if token.special}
        self.specials = SpecialTokens(self._special.values())
        self._segments = Segments(self._encode_chat, _ids(added)) if separable(self._backend) else None
        self._longest = max(map(len, self._backend.get_vocab()), default=1)
        # Literal encoding is a mode of the shared tokenizer, not an argument of the call.
        self._lock = threading.RLock()

    @contextmanager
    def reserved(self) -> Iterator[bool]:
        """Whether no other thread encodes now; if so, none can inside the block, and the caller need not wait."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    @property
    def longest_token(self) -> int:
        """Characters of the longest token, so that a text of n characters has at least n / longest tokens."""
        return self._longest

    @classmethod
    def load(cls, model_dir: Path, image_token_id: int) -> Tokenizer:
        """Read it; CheckpointError when there is no fast tokenizer or no chat template."""
        try:
            pretrained = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
            raise CheckpointError(f"the tokenizer of {model_dir} is not usable: {error}") from error
        if getattr(pretrained, "backend_tokenizer", None) is None:
            raise CheckpointError(f"{model_dir} has no tokenizer.json")
        pretrained.chat_template = pretrained.chat_template or _old_template(model_dir)
        return cls(pretrained, image_token_id)

    def render(self, chat: Chat, tools: Tools = ()) -> str:
        """The chat as one string that ends where the answer begins; InvalidArgumentError when the template refuses."""
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True, "tools": list(tools) or None}
        try:
            text = self._pretrained.apply_chat_template(list(chat), **options)
        except TemplateError as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise InvalidArgumentError(message, param="messages") from error
        return str(text)

    def encode(self, pieces: Sequence[Piece], scope: str = "") -> list[int]:
        """Token ids of the pieces in order; InvalidArgumentError when text cannot be kept from being special.

        Only within `scope`, a cache scope, does it matter what was encoded before, and then for the time alone.
        """
        ids: list[int] = []
        for piece in pieces:
            encoded = self._encode(piece) if piece.literal else self._encode_chat_again(piece.text, scope)
            if piece.literal and not self._special.keys().isdisjoint(encoded):
                raise InvalidArgumentError("a message holds a control token of the model", param="messages")
            ids += encoded
        return ids

    def encode_raw(self, text: str) -> list[int]:
        """Token ids of a text without a template; special are only those that the tokenizer puts around any text."""
        return self._encode(Piece(text, literal=True), add_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids without special tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def piece(self, token_id: int) -> str | None:
        """The vocabulary's spelling of a token; None for an unknown id."""
        spelling: str | None = self._backend.id_to_token(token_id)
        return spelling

    def is_special(self, token_id: int) -> bool:
        """Whether a token shows nothing in the answer."""
        return token_id in self._special

    @property
    def byte_level(self) -> bool:
        """Whether the vocabulary spells bytes as GPT-2 does."""
        return "ByteLevel" in repr(self._backend.decoder)

    def _encode_chat_again(self, text: str, scope: str) -> list[int]:
        if self._segments is None:
            return self._encode_chat(text)
        with self._lock:
            return self._segments.encode(text, scope)

    def _encode_chat(self, text: str) -> list[int]:
        return self._encode(Piece(text, literal=False))

    def _encode(self, piece: Piece, add_special_tokens: bool = False) -> list[int]:
        with self._lock:
            self._backend.encode_special_tokens = piece.literal
            try:
                # A third less work than `encode`, which also notes where in the text each token is.
                (encoded,) = self._backend.encode_batch_fast([piece.text], add_special_tokens=add_special_tokens)
                return list(encoded.ids)
            finally:
                self._backend.encode_special_tokens = False

    def _mark_special(self, token_id: int) -> None:
        token = self._backend.get_added_tokens_decoder().get(token_id)
        if token is None:
            raise CheckpointError(f"the image token {token_id} of the config is no added token of the tokenizer")
        token.special = True
        self._backend.add_special_tokens([token])


def _ids(added: Mapping[int, Any]) -> dict[str, int]:
    return {token.content: index for index, token in added.items()}


def _undated(template: str) -> str:
    """The template with a macro in the place of the function that gives the time."""
    if "strftime_now" not in template:
        return template
    fills = "".join(f"|replace('%{letter}', '{_DAY.strftime(f'%{letter}')}')" for letter in _DIRECTIVES)
    # The empty expression keeps a line break that begins the template from being trimmed with the block.
    return "{% macro strftime_now(form) %}{{ form" + fills + " }}{% endmacro %}{{ '' }}" + template


def _old_template(model_dir: Path) -> str:
    """The template where processors kept it before chat_template.jinja."""
    try:
        template = json.loads((model_dir / "chat_template.json").read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{model_dir} has no chat template") from error
    return str(template)
