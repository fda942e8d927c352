"""The HTTP application: routes and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.router.http.chat import Chat
from services.router.http.errors import on_error, on_http_exception
from services.router.metrics import Metrics
from triptych.errors import TriptychError
from triptych.v1.router_pb2 import ModelCard

Missing = Callable[[], list[str]]


class Pages:
    """What clients and operators read."""

    def __init__(self, card: ModelCard, missing: Missing, metrics: Metrics) -> None:
        self._card, self._missing, self._metrics = card, missing, metrics
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        """The one model, as a list."""
        model = {
            "id": self._card.name,
            "object": "model",
            "created": self._created,
            "owned_by": "triptych",
            "family": self._card.family,
            "context_length": self._card.context_length,
            "max_images": self._card.max_images,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, request: Request) -> Response:
        """The process is alive; it asks nobody."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when requests can be answered, else 503 with what is missing."""
        missing = self._missing()
        return JSONResponse({"ready": not missing, "missing": missing}, 503 if missing else 200)

    async def metrics(self, request: Request) -> Response:
        """Prometheus text format."""
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})


def build_app(chat: Chat, pages: Pages) -> Starlette:
    """The application; every error leaves in OpenAI's form."""
    routes = [
        Route("/v1/chat/completions", chat.complete, methods=["POST"]),
        Route("/v1/models", pages.models),
        Route("/healthz", pages.health),
        Route("/readyz", pages.ready),
        Route("/metrics", pages.metrics),
    ]
    handlers = {TriptychError: on_error, HTTPException: on_http_exception, Exception: on_error}
    return Starlette(routes=routes, exception_handlers=handlers)
