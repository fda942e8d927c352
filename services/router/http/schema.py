"""The body of a chat completion request, as far as it means something here; other fields are let through."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from triptych.errors import InvalidArgumentError

Count = Annotated[int, Field(ge=0, lt=2**32)]


class Model(BaseModel):
    """Fields we do not know are standard ones of another version, or of no consequence here."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class TextPart(Model):
    """Text of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(Model):
    """Where a picture is: `data:`, or `triptych:` and a digest."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Model):
    """A picture of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class ChatMessage(Model):
    """One turn; absent or null content is the empty text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: list[Part] = Field(default_factory=list)

    @field_validator("content", mode="before")
    @classmethod
    def _as_parts(cls, content: Any) -> Any:
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return [] if content is None else content


class StreamOptions(Model):
    """Options of a streamed answer; without effect on others."""

    include_usage: bool | None = None


class ChatRequest(Model):
    """Names and meanings are OpenAI's; `top_k` and what follows are the extras known from vLLM, and our own."""

    model: str = ""
    messages: list[ChatMessage]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the account."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def parse_chat_request(body: bytes) -> ChatRequest:
    """The request; InvalidArgumentError naming the field at fault."""
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = _param(first["loc"])
        raise InvalidArgumentError(f"{param or 'body'}: {first['msg']}", param=param or None) from None


def _param(loc: tuple[int | str, ...]) -> str:
    """The field's path as clients write it, without the names of alternatives that pydantic puts between."""
    path = ""
    for index, step in enumerate(loc):
        after_part = index >= 2 and loc[index - 2] == "content"
        if isinstance(step, int):
            path += f"[{step}]"
        elif not after_part and step != "str" and "[" not in step:
            path += f".{step}" if path else step
    return path
