"""GET /v1/images: the pictures that are known in the caller's scope."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.router.http.authentication import caller_of
from services.router.http.fields import as_asked
from services.router.pictures.images import Images
from triptych.errors import InvalidArgumentError
from triptych.v1.router_pb2 import KnownImage


class KnownImages:
    """What `ListImages` tells, in the form in which OpenAI lists things."""

    def __init__(self, images: Images) -> None:
        self._images = images

    async def list(self, request: Request) -> Response:
        """One page, the latest used first; query parameters `limit`, `after` and `cache_salt`."""
        caller, query = caller_of(request), request.query_params
        limit = query.get("limit", "100")
        if not (limit.isascii() and limit.isdecimal() and len(limit) < 7):
            raise InvalidArgumentError("limit is a number", param="limit")
        scope = caller.scope(query.get("cache_salt"))
        with as_asked():
            page = await self._images.page(scope, int(limit), query.get("after", ""))
        answer = {
            "object": "list",
            "data": [_entry(known) for known in page.images],
            "look_alikes": [list(group.image_ids) for group in page.look_alikes],
            "has_more": bool(page.next_page_token),
            "after": page.next_page_token or None,
        }
        return JSONResponse(answer, headers={"cache-control": "no-store"})


def _entry(known: KnownImage) -> dict[str, object]:
    image = known.image
    return {
        "object": "image",
        "id": image.image_id,
        "width": image.width,
        "height": image.height,
        "tokens": image.tokens,
        "digests": list(known.digests),
        "uses": known.uses,
        "last_use_unix_ms": known.last_use_unix_ms,
    }
