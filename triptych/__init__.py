"""What a user of Triptych imports: clients, conversations, pictures and messages. Errors are in `triptych.errors`."""

from triptych.aio import AsyncClient
from triptych.aio_streams import AsyncAnswerStream
from triptych.answers import Answer, Delta, Event, Finished, Started
from triptych.client import Client
from triptych.conversation import AsyncConversation, Conversation
from triptych.messages import Image, Message, ToolCall, assistant, system, tool, user
from triptych.retry import Retry
from triptych.streams import AnswerStream
from triptych.tls import Tls
from triptych.version import VERSION

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
