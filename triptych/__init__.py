"""What a user of Triptych imports: two clients, pictures and messages. Errors are in `triptych.errors`."""

from triptych.aio import AsyncAnswerStream, AsyncClient
from triptych.answers import Answer, Delta, Event, Finished, Started
from triptych.client import AnswerStream, Client
from triptych.messages import Image, Message, assistant, system, user
from triptych.version import VERSION

__version__ = VERSION
__all__ = [
    "Answer",
    "AnswerStream",
    "AsyncAnswerStream",
    "AsyncClient",
    "Client",
    "Delta",
    "Event",
    "Finished",
    "Image",
    "Message",
    "Started",
    "__version__",
    "assistant",
    "system",
    "user",
]
