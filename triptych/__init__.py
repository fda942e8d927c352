"""What a user of Triptych imports: clients, conversations, pictures and messages. Errors are in `triptych.errors`.

Each is loaded when it is first asked for: the command must not load all of the SDK before it can be interrupted.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from triptych.version import VERSION

if TYPE_CHECKING:
    from triptych.aio import AsyncClient
    from triptych.aio_streams import AsyncAnswerStream
    from triptych.answers import Answer, Delta, Event, Finished, Started
    from triptych.client import Client
    from triptych.conversation import AsyncConversation, Conversation
    from triptych.messages import Image, Message, ToolCall, assistant, system, tool, user
    from triptych.retry import Retry
    from triptych.streams import AnswerStream
    from triptych.tls import Tls

__version__ = VERSION
__all__ = [
    "Answer",
    "AnswerStream",
    "AsyncAnswerStream",
    "AsyncClient",
    "AsyncConversation",
    "Client",
    "Conversation",
    "Delta",
    "Event",
    "Finished",
    "Image",
    "Message",
    "Retry",
    "Started",
    "Tls",
    "ToolCall",
    "__version__",
    "assistant",
    "system",
    "tool",
    "user",
]
_HOMES = {
    "AnswerStream": "streams",
    "AsyncAnswerStream": "aio_streams",
    "AsyncClient": "aio",
    "Client": "client",
    "Retry": "retry",
    "Tls": "tls",
    **dict.fromkeys(("Answer", "Delta", "Event", "Finished", "Started"), "answers"),
    **dict.fromkeys(("AsyncConversation", "Conversation"), "conversation"),
    **dict.fromkeys(("Image", "Message", "ToolCall", "assistant", "system", "tool", "user"), "messages"),
}


def __getattr__(name: str) -> Any:
    """PEP 562: the first use of one of the names above."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
