"""`python -m benchmarks._http_worker PORT MODEL`: a worker that answers at once, for routers that speak HTTP."""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def chat(request: Request) -> JSONResponse:
    """One token."""
    await request.body()
    message = {"role": "assistant", "content": "yes"}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return JSONResponse({"id": "x", "object": "chat.completion", "model": sys.argv[2], "choices": [choice]})


async def describe(request: Request) -> JSONResponse:
    """Whatever a router asks about."""
    model = {"id": sys.argv[2], "object": "model", "owned_by": "nobody"}
    return JSONResponse(
        {"object": "list", "data": [model], "model_path": sys.argv[2], "served_model_name": sys.argv[2]}
    )


def main(port: int) -> None:
    """Serve until killed."""
    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/{path:path}", describe)]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
