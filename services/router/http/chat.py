"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.router.caller import ANONYMOUS, Caller
from services.router.generation import Generator
from services.router.http.body import read_body
from services.router.http.completion import Completion
from services.router.http.convert import check_supported, to_generate
from services.router.http.intake import Intake
from services.router.http.schema import ChatRequest, parse_chat_request
from services.router.http.streaming import Events, EventStream, until_disconnect
from services.router.tokenizer import Tokenizer
from triptych.v1.router_pb2 import GenerateFinished, GenerateRequest

REQUEST_ID = "x-request-id"


class Chat:
    """The endpoint: OpenAI's request in, the shared generator, OpenAI's answer out."""

    def __init__(
        self, model: str, generator: Generator, intake: Intake, tokenizer: Tokenizer, max_body: int, timeout_s: float
    ) -> None:
        self._model, self._generator, self._intake = model, generator, intake
        self._tokenizer, self._max_body, self._timeout_s = tokenizer, max_body, timeout_s

    async def complete(self, request: Request) -> Response:
        """The answer, whole or as a stream."""
        caller = Caller(ANONYMOUS, asyncio.get_running_loop().time() + self._timeout_s)
        body = await read_body(request, self._max_body)
        asked = await asyncio.to_thread(parse_chat_request, body)
        check_supported(asked)
        headers = {REQUEST_ID: request.headers.get(REQUEST_ID) or uuid.uuid4().hex}
        completion = Completion(self._model, self._tokenizer, bool(asked.logprobs))
        if asked.stream:
            return EventStream(self._events(asked, completion, caller, headers[REQUEST_ID]), headers)
        answer = self._whole(asked, completion, caller, headers[REQUEST_ID])
        return JSONResponse(await until_disconnect(request.receive, answer), headers=headers)

    async def _prepare(self, asked: ChatRequest, request_id: str) -> GenerateRequest:
        return to_generate(asked, await self._intake.digests(asked), request_id)

    async def _whole(self, asked: ChatRequest, completion: Completion, caller: Caller, request_id: str) -> Any:
        deltas, finished = [], GenerateFinished()
        generation = self._generator.generate(await self._prepare(asked, request_id), caller)
        async with aclosing(generation) as responses:
            async for response in responses:
                if response.HasField("delta"):
                    deltas.append(response.delta)
                elif response.HasField("finished"):
                    finished = response.finished
        return completion.whole(deltas, finished)

    async def _events(self, asked: ChatRequest, completion: Completion, caller: Caller, request_id: str) -> Events:
        opened = False
        generation = self._generator.generate(await self._prepare(asked, request_id), caller)
        async with aclosing(generation) as responses:
            async for response in responses:
                # The status line waits for the first token: until then a failure can still be a proper error.
                if not opened and not response.HasField("started"):
                    opened = True
                    yield completion.opening()
                if response.HasField("delta") and (chunk := completion.delta(response.delta)):
                    yield chunk
                if response.HasField("finished"):
                    yield completion.closing(response.finished)
                    if asked.include_usage:
                        yield completion.account(response.finished)
