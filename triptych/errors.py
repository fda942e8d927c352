"""The one tree of errors that Triptych raises, in services and in the SDK alike.

TriptychError
├── ConfigError                 a setting, a flag or a checkpoint is unusable; the process stops with the sentence
│   └── CheckpointError         the model directory cannot be served
├── InvalidArgumentError        400  the request can never succeed as it is
│   ├── InvalidImageError       the bytes are no acceptable picture
│   ├── RemoteImageError        the picture of a URL may not or cannot be fetched
│   └── ContextLengthError      prompt and max_tokens do not fit the model's context or the KV pool
├── UnauthenticatedError        401  the API key is missing or unknown
├── PermissionDeniedError       403  the API key's tenant may not do this
├── NotFoundError               404
│   ├── ImagesNotFoundError     digests whose pixels must be sent first
│   └── ModelNotFoundError      the model name is not served here
├── FailedPreconditionError     400  an old ticket, or two parts that do not fit together
│   ├── ClientClosedError       the caller closed the client before
│   ├── WrongInstanceError      the address belongs to another process now; never reaches a client
│   └── QuarantinedError        422  the request has brought down workers before
├── ResourceExhaustedError      429  full for now
│   ├── QuotaExceededError      429  the tenant of the API key uses all that it may
│   └── PayloadTooLargeError    413  over a fixed limit
├── RequestCancelledError       499  the caller left
├── DeadlineExceededError       504
├── UnavailableError            503  a part is down or not ready yet
└── InternalError               500  ours; the details stay in the log

A foreign exception is mapped to one of these once, where it enters. `triptych.status` carries them over gRPC,
`services.router.http` over HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class TriptychError(Exception):
    """Base of all. `code` is the gRPC status name, `reason` the stable machine-readable word of the error.

    `param` names the request field at fault, `retry_after_s` (seconds) is set where waiting helps.
    """

    code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    reason: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class ConfigError(TriptychError):
    """A setting that makes no sense; raised while a process starts, never during a request."""

    code = "FAILED_PRECONDITION"
    reason = "config"


class CheckpointError(ConfigError):
    """The model directory is missing, incomplete or of an unsupported family."""

    reason = "checkpoint"


class InvalidArgumentError(TriptychError):
    """The request is wrong; repeating it unchanged cannot help."""

    code = "INVALID_ARGUMENT"
    http_status = 400
    reason = "invalid_argument"


class InvalidImageError(InvalidArgumentError):
    """The bytes are not a picture we accept: unreadable, truncated, too large in pixels or too narrow."""

    reason = "invalid_image"


class RemoteImageError(InvalidArgumentError):
    """The picture of an http or https URL may not be fetched here, or could not be."""

    reason = "remote_image"


class ContextLengthError(InvalidArgumentError):
    """Prompt plus requested output exceed what the model or the KV pool can ever hold."""

    reason = "context_length_exceeded"


class UnauthenticatedError(TriptychError):
    """No API key, or one we do not know."""

    code = "UNAUTHENTICATED"
    http_status = 401
    reason = "unauthenticated"


class PermissionDeniedError(TriptychError):
    """The caller is known, and not allowed to do this."""

    code = "PERMISSION_DENIED"
    http_status = 403
    reason = "permission_denied"


class NotFoundError(TriptychError):
    """A named thing does not exist."""

    code = "NOT_FOUND"
    http_status = 404
    reason = "not_found"


class ImagesNotFoundError(NotFoundError):
    """The pixels of `digests` (file digests, hex) are not here: upload them and repeat the request."""

    reason = "images_not_found"

    def __init__(self, digests: Sequence[str], *, param: str | None = None) -> None:
        super().__init__(f"{len(digests)} image(s) are unknown here; upload them and repeat the request", param=param)
        self.digests = tuple(digests)


class ModelNotFoundError(NotFoundError):
    """The request names a model that this cluster does not serve."""

    reason = "model_not_found"


class FailedPreconditionError(TriptychError):
    """Two parts do not fit together (layout, model), or a ticket is no longer valid."""

    code = "FAILED_PRECONDITION"
    http_status = 400
    reason = "failed_precondition"


class WrongInstanceError(FailedPreconditionError):
    """The process at this address is not the one that the caller meant."""

    reason = "wrong_instance"
    retryable = True


class QuarantinedError(FailedPreconditionError):
    """Workers died over this very request; for some time it is not tried again."""

    http_status = 422
    reason = "request_quarantined"


class ClientClosedError(FailedPreconditionError):
    """A call through a client that was closed before; never comes from a server."""

    reason = "client_closed"


class ResourceExhaustedError(TriptychError):
    """There is no room now; try again after `retry_after_s`."""

    code = "RESOURCE_EXHAUSTED"
    http_status = 429
    reason = "overloaded"
    retryable = True


class QuotaExceededError(ResourceExhaustedError):
    """The caller's tenant uses all that its quota allows; others are not affected."""

    reason = "quota_exceeded"


class PayloadTooLargeError(ResourceExhaustedError):
    """A body or an upload is over a fixed limit; repeating it cannot help."""

    http_status = 413
    reason = "payload_too_large"
    retryable = False


class RequestCancelledError(TriptychError):
    """The caller cancelled or disconnected."""

    code = "CANCELLED"
    http_status = 499
    reason = "cancelled"


class DeadlineExceededError(TriptychError):
    """The deadline passed before the answer was complete."""

    code = "DEADLINE_EXCEEDED"
    http_status = 504
    reason = "deadline_exceeded"
    retryable = True


class UnavailableError(TriptychError):
    """A part of the cluster is down or not ready yet."""

    code = "UNAVAILABLE"
    http_status = 503
    reason = "unavailable"
    retryable = True


class InternalError(TriptychError):
    """A fault of ours. The message says no more than that; the log has the rest."""
