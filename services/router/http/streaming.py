"""Server-sent events, and the end of work when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.router.http.errors import as_ours, error_body, error_response, note_refusal
from triptych.errors import RequestCancelledError, UnavailableError

T = TypeVar("T")
Events = AsyncGenerator[dict[str, Any]]
DONE = b"data: [DONE]\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Result of `work`, of which no trace is left when it cannot be finished.

    RequestCancelledError when the client leaves first, UnavailableError when the server ends the request.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    tasks = (working, leaving)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestCancelledError("the client left")
        return working.result()
    except asyncio.CancelledError:
        raise UnavailableError("the server stops before the answer is complete") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends `events`. A failure before the first one is an ordinary error response, a later one the last event."""

    def __init__(self, events: Events) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        self._events = events
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the end, or until the client leaves."""
        try:
            await until_disconnect(receive, self._send(send))
        except Exception as error:  # noqa: BLE001 - mapped, as everywhere at this edge
            if not self._begun:
                note_refusal(scope, error)
                await error_response(as_ours(error))(scope, receive, send)
                return
            await self._send_event(send, error_body(as_ours(error)))
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                if not self._begun:
                    await self._start(send)
                await self._send_event(send, event)

    async def _start(self, send: Send) -> None:
        self._begun = True
        headers = [item for item in self.raw_headers if item[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_event(self, send: Send, event: dict[str, Any]) -> None:
        body = b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
