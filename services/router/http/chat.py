"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from services.router.http.authentication import caller_of
from services.router.http.completion import ChatForm
from services.router.http.convert import chat_to_generate, check_chat
from services.router.http.endpoint import Endpoint
from services.router.http.intake import Intake
from services.router.http.request_ids import request_id_of
from services.router.http.schema import ChatRequest
from services.router.prompts.tokenizer import Tokenizer
from triptych.v1.router_pb2 import GenerateRequest


class Chat:
    """The endpoint: OpenAI's request in, OpenAI's answer out."""

    def __init__(self, model: str, endpoint: Endpoint, intake: Intake, tokenizer: Tokenizer) -> None:
        self._model, self._endpoint, self._intake, self._tokenizer = model, endpoint, intake, tokenizer

    async def complete(self, request: Request) -> Response:
        """The answers, whole or as a stream."""
        asked = await self._endpoint.read_asked(request, ChatRequest)
        check_chat(asked)
        caller, request_id = caller_of(request), request_id_of(request)

        async def prepare() -> GenerateRequest:
            return chat_to_generate(asked, await self._intake.digests(asked, caller), request_id)

        form = ChatForm(self._model, self._tokenizer, bool(asked.logprobs))
        return await self._endpoint.respond(request, asked, prepare, form)
