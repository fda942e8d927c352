"""What goes wrong while fetching, as errors of ours: none of it is a fault of this server."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpcore

from triptych.errors import PayloadTooLargeError, RemoteImageError

_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
    OSError,
)


@contextmanager
def network_errors(authority: str) -> Iterator[None]:
    """The only place where failures of the network enter; the URL's path is not repeated, it may be a secret."""
    try:
        yield
    except _FAILURES as error:
        reason = "its certificate is not valid" if _is_certificate(error) else type(error).__name__
        raise RemoteImageError(f"the image cannot be fetched from {authority} ({reason})") from error


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Errors of the block name the request's field."""
    try:
        yield
    except (RemoteImageError, PayloadTooLargeError) as error:
        error.param = param
        raise


def _is_certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
