"""POST /v1/completions, /tokenize and /detokenize: text and tokens without a conversation."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.router.http.authentication import caller_of
from services.router.http.convert import check_completion, completion_to_generate, tokenize_to_generate
from services.router.http.endpoint import Endpoint
from services.router.http.fields import as_asked
from services.router.http.intake import Intake
from services.router.http.request_ids import request_id_of
from services.router.http.schema import CompletionRequest, DetokenizeRequest, TokenizeRequest
from services.router.http.text_form import TextForm
from services.router.prompts.tokenizer import Tokenizer
from triptych.v1.router_pb2 import GenerateRequest, ModelCard


class Text:
    """The endpoints. Those for tokens have the form that vLLM gave them."""

    def __init__(self, card: ModelCard, endpoint: Endpoint, intake: Intake, tokenizer: Tokenizer) -> None:
        self._card, self._endpoint, self._intake, self._tokenizer = card, endpoint, intake, tokenizer

    async def complete(self, request: Request) -> Response:
        """Go on with a raw prompt."""
        asked = await self._endpoint.read_asked(request, CompletionRequest)
        check_completion(asked)
        generate = completion_to_generate(asked, request_id_of(request))

        async def prepare() -> GenerateRequest:
            return generate

        form = TextForm(self._card.name, self._tokenizer, asked.logprobs is not None)
        return await self._endpoint.respond(request, asked, prepare, form)

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a text or a conversation, every picture expanded to its placeholders."""
        asked, caller = await self._endpoint.read(request, TokenizeRequest), caller_of(request)
        digests = await self._intake.digests(asked, caller)
        with as_asked():
            prompt = await self._endpoint.generator.tokenize(tokenize_to_generate(asked, digests), caller)
        ids = list(prompt.token_ids)
        return JSONResponse({"count": len(ids), "max_model_len": self._card.context_length, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens, without special ones."""
        asked = await self._endpoint.read(request, DetokenizeRequest)
        with as_asked():
            return JSONResponse({"prompt": await self._endpoint.generator.detokenize(asked.tokens)})
