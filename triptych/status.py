"""Carries the error tree over gRPC: one status, one `ErrorDetail`, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from triptych import errors
from triptych.v1.types_pb2 import ErrorDetail

DETAILS_KEY = "grpc-status-details-bin"
# Trailers over the limit of metadata do not only lose the error: they end all calls of the connection. Some messages
# repeat what a caller wrote; of missing pictures the rest is named by the next answer.
MAX_CHARACTERS = 1000
MAX_MISSING = 512


def _tree(cls: type[errors.TriptychError]) -> Iterator[type[errors.TriptychError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)


# Servers have errors of their own, which inherit a reason and never travel.
_BY_REASON = {cls.reason: cls for cls in _tree(errors.TriptychError) if cls.__module__ == errors.__name__}
# What a status without our detail means: it came from gRPC itself or from something in between.
_BY_CODE: dict[str, type[errors.TriptychError]] = {
    "CANCELLED": errors.RequestCancelledError,
    "INVALID_ARGUMENT": errors.InvalidArgumentError,
    "NOT_FOUND": errors.NotFoundError,
    "DEADLINE_EXCEEDED": errors.DeadlineExceededError,
    "FAILED_PRECONDITION": errors.FailedPreconditionError,
    "RESOURCE_EXHAUSTED": errors.PayloadTooLargeError,
    "UNAUTHENTICATED": errors.UnauthenticatedError,
    "PERMISSION_DENIED": errors.PermissionDeniedError,
    "UNAVAILABLE": errors.UnavailableError,
}


def to_detail(error: errors.TriptychError) -> ErrorDetail:
    """The wire form of `error`."""
    return ErrorDetail(
        reason=error.reason,
        retryable=error.retryable,
        param=short(error.param or ""),
        retry_after_ms=round((error.retry_after_s or 0) * 1000),
        missing_digests=getattr(error, "digests", ())[:MAX_MISSING],
    )


def to_metadata(error: errors.TriptychError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata holding a google.rpc.Status with the `ErrorDetail`."""
    packed = Any()
    packed.Pack(to_detail(error))
    code = getattr(grpc.StatusCode, error.code).value[0]
    return ((DETAILS_KEY, Status(code=code, message=short(error.message), details=[packed]).SerializeToString()),)


def short(text: str) -> str:
    """What of a text may travel in trailers."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def _detail_of(call: grpc.Call | grpc.aio.AioRpcError) -> ErrorDetail | None:
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS_KEY:
            # Whatever is between here and there may have written it: bytes that say nothing are no detail.
            with suppress(DecodeError):
                return _first_detail(Status.FromString(value))
    return None


def _first_detail(status: Status) -> ErrorDetail | None:
    for packed in status.details:
        detail = ErrorDetail()
        if packed.Unpack(detail):
            return detail
    return None


def from_rpc_error(call: grpc.Call | grpc.aio.AioRpcError, peer: str = "") -> errors.TriptychError:
    """Rebuild the error that the peer raised; `peer` is named when the fault is the connection's."""
    detail, message = _detail_of(call), call.details() or ""
    if detail is None:
        cls = _BY_CODE.get(call.code().name, errors.InternalError)
        return cls(f"{peer}: {message}" if peer else message)
    cls = _BY_REASON.get(detail.reason, _BY_CODE.get(call.code().name, errors.InternalError))
    if cls is errors.ImagesNotFoundError:
        return errors.ImagesNotFoundError(list(detail.missing_digests), param=detail.param or None)
    wait = detail.retry_after_ms / 1000 or None
    return cls(message, param=detail.param or None, retry_after_s=wait)


def is_cancelled() -> bool:
    """Whether somebody wants the running task to end: grpc.aio raises CancelledError also when a peer ends a call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@contextmanager
def rpc_errors(peer: str = "") -> Iterator[None]:
    """Map gRPC failures inside the block to the error tree; the only place where they enter."""
    try:
        yield
    except asyncio.CancelledError:
        # A call that its peer ends as CANCELLED raises this in whoever uses it, although nobody cancelled that task.
        if is_cancelled():
            raise
        raise errors.UnavailableError(f"{peer or 'a peer'} cancelled the call") from None
    except grpc.RpcError as exc:
        raise from_rpc_error(exc, peer) from exc  # type: ignore[arg-type]
