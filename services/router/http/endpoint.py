"""What the endpoints that answer have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.router.caller import Caller
from services.router.generation import Generator
from services.router.http.answering import Form, Generation, chunks, whole
from services.router.http.authentication import caller_of
from services.router.http.body import read_body
from services.router.http.fields import as_asked
from services.router.http.model import Body, parse_body
from services.router.http.schema import AnswerRequest
from services.router.http.streaming import EventStream, until_disconnect
from services.router.pictures.incoming import Incoming
from triptych.v1.router_pb2 import GenerateRequest

SESSION_ID = "x-session-id"
Asked = TypeVar("Asked", bound=AnswerRequest)
Prepare = Callable[[], Awaitable[GenerateRequest]]


class Endpoint:
    """A body in, the shared generator, an answer out."""

    def __init__(self, generator: Generator, max_body: int, incoming: Incoming) -> None:
        self.generator, self._max_body, self._incoming = generator, max_body, incoming

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """The request's body; InvalidArgumentError naming the field at fault, PayloadTooLargeError."""
        return await asyncio.to_thread(parse_body, kind, await read_body(request, self._max_body, self._incoming))

    async def read_asked(self, request: Request, kind: type[Asked]) -> Asked:
        """As `read`, with the session that the body or else a header names."""
        asked = await self.read(request, kind)
        asked.session_id = asked.session_id or request.headers.get(SESSION_ID)
        return asked

    async def respond(self, request: Request, asked: AnswerRequest, prepare: Prepare, form: Form) -> Response:
        """The answers to what `prepare` gives, whole or as a stream. All work ends when the client leaves."""
        generation = self._generate(asked, prepare, caller_of(request))
        if asked.stream:
            return EventStream(chunks(generation, form, asked.include_usage))
        return JSONResponse(await until_disconnect(request.receive, whole(generation, form)))

    async def _generate(self, asked: AnswerRequest, prepare: Prepare, caller: Caller) -> Generation:
        with as_asked(asked.renamings):
            async with aclosing(self.generator.generate(await prepare(), caller)) as responses:
                async for response in responses:
                    yield response
