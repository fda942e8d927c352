"""The prompt of a request, whether it is a conversation or given as it is."""

from __future__ import annotations

from contextlib import AbstractContextManager

from services.router.fields import fields_renamed
from services.router.prompts.messages import ImageUse, check_image_count, check_messages, use_of
from services.router.prompts.rendering import Renderer
from services.router.prompts.tokenizer import Tokenizer
from services.router.prompts.tools import offered
from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import GenerateRequest


def image_uses(request: GenerateRequest, max_images: int) -> list[ImageUse]:
    """The pictures in order; InvalidArgumentError naming the message or part at fault."""
    if not request.HasField("prompt"):
        return check_messages(request.messages, max_images)
    images = request.prompt.images
    check_image_count(len(images), max_images)
    return [use_of(image, f"prompt.images[{index}]") for index, image in enumerate(images)]


def prompt_named(request: GenerateRequest) -> AbstractContextManager[None]:
    """Errors of the block blame the field that holds the prompt, which need not be the messages."""
    return fields_renamed([("^messages$", "prompt")] if request.HasField("prompt") else ())


def characters(request: GenerateRequest) -> int:
    """Length of all text that has to be tokenized, or number of the tokens that are given."""
    if request.HasField("prompt"):
        return len(request.prompt.text) + len(request.prompt.token_ids)
    texts = sum(len(part.text) for message in request.messages for part in message.content)
    calls = sum(len(call.name) + len(call.arguments) for message in request.messages for call in message.tool_calls)
    return texts + calls + sum(len(tool.description) + len(tool.parameters) for tool in offered(request))


def pieces(request: GenerateRequest) -> int:
    """Messages of the conversation, and the parts and calls in them."""
    return sum(1 + len(message.content) + len(message.tool_calls) for message in request.messages)


def token_ids(request: GenerateRequest, renderer: Renderer, tokenizer: Tokenizer, scope: str) -> list[int]:
    """Token ids, every picture one marker. Blocking. InvalidArgumentError for a prompt without any token."""
    if not request.HasField("prompt"):
        return renderer.render(request.messages, offered(request), scope)
    ids = list(request.prompt.token_ids) or tokenizer.encode_raw(request.prompt.text)
    if not ids:
        raise InvalidArgumentError("the prompt is empty", param="prompt")
    return ids
