"""The bodies of requests, as far as they mean something here; other fields are let through."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from services.router.fields import Renaming
from services.router.http.formats import Format
from services.router.http.model import Count, Model
from services.router.http.tool_schema import CallSpec, NamedTool, ToolSpec
from services.router.prompts.messages import MAX_MESSAGES
from services.router.waiting.queue import MOST_PRIORITY


class TextPart(Model):
    """Text of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(Model):
    """Where a picture is: `data:`, `triptych:` and a digest, or `http(s):` where remote pictures are fetched."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Model):
    """A picture of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class RefusalPart(Model):
    """What an earlier answer said instead of what was asked."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | ImagePart | RefusalPart, Field(discriminator="type")]


class ChatMessage(Model):
    """One turn; absent or null content is the empty text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: list[Part] = Field(default_factory=list)
    tool_calls: list[CallSpec] | None = None
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _as_parts(cls, content: Any) -> Any:
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return [] if content is None else content


Messages = Annotated[list[ChatMessage], Field(max_length=MAX_MESSAGES)]


class StreamOptions(Model):
    """Options of a streamed answer; without effect on others."""

    include_usage: bool | None = None


class AnswerRequest(Model):
    """How to answer, whatever the question. `top_k` and what follows are the extras known from vLLM, and our own."""

    model: str = ""
    max_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Annotated[Count, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: Any = None
    cache_salt: str | None = None
    session_id: str | None = None
    context_policy: str | None = None
    prompt_map: bool | None = None
    priority: Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the account."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def renamings(self) -> list[Renaming]:
        """Where this request calls a field differently than others do."""
        return []


class ChatRequest(AnswerRequest):
    """A conversation; names and meanings are OpenAI's."""

    messages: Messages
    max_completion_tokens: Annotated[Count, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    response_format: Format | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @property
    def renamings(self) -> list[Renaming]:
        """See `AnswerRequest`. Without a format of its own, an answer's grammar is that of the tools."""
        renamings = [("^max_tokens$", "max_completion_tokens")] if self.max_completion_tokens is not None else []
        return renamings if self.response_format else [*renamings, (r"^sampling\.grammar.*", "tools")]


class CompletionRequest(AnswerRequest):
    """A raw prompt, the older form."""

    prompt: str | list[str] | list[Count] | list[list[Count]]
    echo: bool | None = None
    suffix: str | None = None
    best_of: Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @property
    def renamings(self) -> list[Renaming]:
        """See `AnswerRequest`."""
        return [("^top_logprobs$", "logprobs")]


class TokenizeRequest(Model):
    """A text, or a conversation as a chat completion has it."""

    model: str = ""
    prompt: str | None = None
    messages: Messages = Field(default_factory=list)
    tools: list[ToolSpec] | None = None
    cache_salt: str | None = None


class DetokenizeRequest(Model):
    """Tokens whose text is wanted."""

    tokens: list[Count]
