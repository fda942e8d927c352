"""The console: a page that chats and shows what of each prompt came from which cache. Static files, no build step."""

from __future__ import annotations

from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # Nothing from elsewhere, nothing inline: text of a model or a user can never become script.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Console:
    """Keeps the files in memory; they are few and small."""

    def __init__(self) -> None:
        folder = files("services.router.http.console") / "static"
        self._files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    @property
    def routes(self) -> list[Route]:
        """The page at the root, and its files below /console."""
        return [Route("/", self.page), Route("/console/{name}", self.page)]

    async def page(self, request: Request) -> Response:
        """One file; 404 for any other name."""
        name = request.path_params.get("name", "index.html")
        if name not in self._files:
            raise HTTPException(404)
        media = TYPES[name[name.rindex(".") :]]
        return Response(self._files[name], headers={**HEADERS, "content-type": media})
