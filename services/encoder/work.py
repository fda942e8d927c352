"""The plain values that cross the boundary between the front and the replicas."""

from __future__ import annotations

from dataclasses import dataclass

from triptych import errors
from triptych.errors import ImagesNotFoundError, InternalError, TriptychError


@dataclass(frozen=True)
class Task:
    """One picture to encode; fields as in `triptych.v1.EncodeImage`.

    `request` needs the embedding and gets a lease; `data` is the picture's file when it came past the store.
    """

    embedding_key: str
    image_id: str
    cache_scope: str
    tokens: int
    width: int
    height: int
    request: str = ""
    data: bytes | None = None


@dataclass(frozen=True)
class Done:
    """An embedding is ready; `outcome` is a `triptych.v1.EncodeOutcome`, times are nanoseconds.

    `value` is the packed embedding when the store could not take it, and None when it is there.
    """

    embedding_key: str
    outcome: int
    size_bytes: int
    encode_ns: int
    value: bytes | None = None


@dataclass(frozen=True)
class Description:
    """What a replica has loaded."""

    config_fingerprint: str
    model_fingerprint: str
    preprocessing_fingerprint: str
    resident_bytes: int


@dataclass(frozen=True)
class Failure:
    """An error of our tree as a value: Ray would wrap a raised one in its own, with a stack trace in the message."""

    kind: str
    message: str
    param: str | None
    retry_after_s: float | None
    digests: tuple[str, ...]

    @classmethod
    def of(cls, error: TriptychError) -> Failure:
        """The value of `error`."""
        digests = tuple(getattr(error, "digests", ()))
        return cls(type(error).__name__, error.message, error.param, error.retry_after_s, digests)

    def error(self) -> TriptychError:
        """The error again."""
        kind = getattr(errors, self.kind, InternalError)
        if kind is ImagesNotFoundError:
            return ImagesNotFoundError(self.digests, param=self.param)
        error: TriptychError = kind(self.message, param=self.param, retry_after_s=self.retry_after_s)
        return error
