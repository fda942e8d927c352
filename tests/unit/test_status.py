"""What arrives of an error when its details are not what they should be."""

from __future__ import annotations

import runpy

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc.status_pb2 import Status
from grpc.aio import AioRpcError, Metadata

from triptych import status
from triptych.errors import ImagesNotFoundError, InternalError, TriptychError, UnavailableError
from triptych.status import DETAILS_KEY, from_rpc_error, to_metadata
from triptych.v1.types_pb2 import ErrorDetail

URL = "type.googleapis.com/triptych.v1.ErrorDetail"


def received(details: bytes) -> TriptychError:
    trailers = Metadata((DETAILS_KEY, details))
    return from_rpc_error(AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), trailers, "down"))


@pytest.mark.parametrize(
    "details",
    [b"\xff\xff", b"", Status(details=[Any(type_url=URL, value=b"\xff")]).SerializeToString()],
    ids=["no status", "empty", "no detail"],
)
def test_malformed_details_leave_the_status(details: bytes) -> None:
    error = received(details)
    assert (type(error), error.message) == (UnavailableError, "down")


def test_missing_pictures_need_not_be_named() -> None:
    packed = Any(type_url=URL, value=ErrorDetail(reason="images_not_found").SerializeToString())
    error = received(Status(details=[packed]).SerializeToString())
    assert isinstance(error, ImagesNotFoundError) and error.digests == ()


def test_an_error_that_a_server_has_for_itself_stands_for_no_other() -> None:
    class OwnError(InternalError):
        """Inherits its reason."""

    # Run anew, as in a process that has imported the other first.
    rebuild = runpy.run_path(str(status.__file__))["from_rpc_error"]
    code, message = grpc.StatusCode.INTERNAL, "no"
    trailers = Metadata(*to_metadata(OwnError(message)))
    assert type(rebuild(AioRpcError(code, Metadata(), trailers, message))) is InternalError
