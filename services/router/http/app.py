"""The HTTP application: routes and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.router.access.access import Access
from services.router.figures.metrics import Metrics
from services.router.http.authentication import Authentication
from services.router.http.chat import Chat
from services.router.http.console import Console
from services.router.http.errors import on_error, on_http_exception
from services.router.http.known import KnownImages
from services.router.http.request_ids import RequestIds
from services.router.http.text import Text
from services.router.http.tracing import TraceContext
from triptych.errors import ModelNotFoundError, TriptychError
from triptych.v1.router_pb2 import ModelCard

Missing = Callable[[], list[str]]


class Pages:
    """What clients and operators read."""

    def __init__(self, card: ModelCard, missing: Missing, degraded: Missing, metrics: Metrics) -> None:
        self._card, self._missing, self._degraded, self._metrics = card, missing, degraded, metrics
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        """The one model, as a list."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """One model; ModelNotFoundError for another name than the one served."""
        name = request.path_params["name"]
        if name != self._card.name:
            raise ModelNotFoundError(f"the model {name!r} is not served here; {self._card.name!r} is", param="model")
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        """The process is alive; it asks nobody."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when requests can be answered, else 503 with what is missing; what only costs time is `degraded`."""
        missing = self._missing()
        content = {"ready": not missing, "missing": missing, "degraded": self._degraded()}
        return JSONResponse(content, 503 if missing else 200)

    async def metrics(self, request: Request) -> Response:
        """Prometheus text format."""
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._card.name,
            "object": "model",
            "created": self._created,
            "owned_by": "triptych",
            "family": self._card.family,
            "context_length": self._card.context_length,
            "max_images": self._card.max_images,
        }


def build_app(
    chat: Chat,
    text: Text,
    pages: Pages,
    known: KnownImages,
    access: Access,
    refused: Callable[[TriptychError], None],
    timeout_s: float,
) -> Starlette:
    """The application; every error leaves in OpenAI's form and is told to `refused`.

    Requests have `timeout_s` for their work; their clients may take longer to read the rest of an answer.
    """
    routes = [
        Route("/v1/chat/completions", chat.complete, methods=["POST"]),
        Route("/v1/completions", text.complete, methods=["POST"]),
        Route("/tokenize", text.tokenize, methods=["POST"]),
        Route("/detokenize", text.detokenize, methods=["POST"]),
        Route("/v1/models", pages.models),
        # Names may hold a slash, as those of a hub do.
        Route("/v1/models/{name:path}", pages.model),
        Route("/v1/images", known.list),
        Route("/healthz", pages.health),
        Route("/readyz", pages.ready),
        Route("/metrics", pages.metrics),
        *Console().routes,
    ]
    handlers = {TriptychError: on_error, HTTPException: on_http_exception, Exception: on_error}
    guard = Middleware(Authentication, access=access, timeout_s=timeout_s)
    middleware = [Middleware(TraceContext), Middleware(RequestIds), guard]
    app = Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)
    app.state.refused = refused
    return app
