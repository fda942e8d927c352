"""A RouterService for the SDK's tests: remembers uploads, counts their bytes, answers every question with one text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc

from triptych.errors import ImagesNotFoundError, TriptychError
from triptych.status import to_metadata
from triptych.v1 import router_pb2 as pb
from triptych.v1 import types_pb2 as types
from triptych.v1.router_pb2_grpc import RouterServiceServicer, add_RouterServiceServicer_to_server

Context = grpc.ServicerContext
ANSWER = ["a red", " circle"]


def _abort(context: Context, error: TriptychError) -> NoReturn:
    context.set_trailing_metadata(to_metadata(error))
    context.abort(getattr(grpc.StatusCode, error.code), error.message)
    raise error


class FakeRouter(RouterServiceServicer):
    """What a test changes.

    `failure` is raised by Generate, `failures` are raised one a call by any method, `forgetful` drops uploads, `cut`
    leaves out the end.
    """

    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}
        self.uploads: list[str] = []
        self.requests: list[pb.GenerateRequest] = []
        self.largest_chunk = 0
        self.received_bytes = 0
        self.failure: TriptychError | None = None
        self.failures: list[TriptychError] = []
        self.forgetful = False
        self.cut = False

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateResponse]:
        """Started, the answer in two pieces, finished."""
        self.requests.append(request)
        self._fail(context)
        if self.failure:
            _abort(context, self.failure)
        named = [part.image.digest for message in request.messages for part in message.content if part.image.digest]
        missing = [digest for digest in dict.fromkeys(named) if digest not in self.known]
        if missing:
            _abort(context, ImagesNotFoundError(missing))
        yield pb.GenerateResponse(started=pb.GenerateStarted(request_id=request.request_id or "made", model="toy"))
        for text in ANSWER:
            yield pb.GenerateResponse(delta=pb.GenerateDelta(text=text, tokens=[types.GeneratedToken(token_id=1)]))
        if not self.cut:
            usage = types.Usage(prompt_tokens=7, images=len(named))
            finished = pb.GenerateFinished(reason=types.FINISH_REASON_LENGTH, usage=usage)
            yield pb.GenerateResponse(finished=finished)

    def PutImage(self, request_iterator: Iterator[pb.PutImageRequest], context: Any) -> pb.PutImageResponse:
        """Store the bytes under the digest of the header."""
        self._fail(context)
        header = next(request_iterator).header
        data = b""
        for piece in request_iterator:
            self.largest_chunk = max(self.largest_chunk, len(piece.chunk))
            data += piece.chunk
        self.received_bytes += len(data)
        self.uploads.append(header.digest)
        if not self.forgetful:
            self.known[header.digest] = data
        return pb.PutImageResponse(image=pb.ImageRecord(digest=header.digest))

    def FindImages(self, request: pb.FindImagesRequest, context: Any) -> pb.FindImagesResponse:
        """Split by what is known."""
        found = [pb.ImageRecord(digest=digest) for digest in request.digests if digest in self.known]
        return pb.FindImagesResponse(found=found, missing=[d for d in request.digests if d not in self.known])

    def ListImages(self, request: pb.ListImagesRequest, context: Any) -> pb.ListImagesResponse:
        """One known picture a page; the first two look the same."""
        names, at = list(self.known), int(request.page_token or 0)
        record = [pb.ImageRecord(digest=name, image_id=name, width=4, height=2, tokens=3) for name in names]
        images = [pb.KnownImage(image=each, digests=[each.digest], uses=5) for each in record[at : at + 1]]
        alike = [] if at or len(names) < 2 else [pb.LookAlikes(image_ids=names[:2], encodings=2)]
        token = str(at + 1) if at + 1 < len(names) else ""
        return pb.ListImagesResponse(images=images, look_alikes=alike, next_page_token=token)

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        """One model."""
        self._fail(context)
        return pb.ListModelsResponse(models=[pb.ModelCard(name="toy")])

    def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        """A token a word, ten a picture."""
        parts = [part for message in request.request.messages for part in message.content]
        missing = [part.image.digest for part in parts if part.image.digest and part.image.digest not in self.known]
        if missing:
            _abort(context, ImagesNotFoundError(missing))
        count = sum(10 if part.image.digest else len(part.text.split()) for part in parts)
        return pb.TokenizeResponse(token_ids=range(count))

    def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        """The ids in digits."""
        return pb.DetokenizeResponse(text=" ".join(map(str, request.token_ids)))

    def WatchCluster(self, request: pb.WatchClusterRequest, context: Any) -> Iterator[pb.WatchClusterResponse]:
        """One empty snapshot."""
        self._fail(context)
        yield pb.WatchClusterResponse()

    def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        """Nothing has been asked yet."""
        return pb.ExplainResponse()

    def _fail(self, context: Any) -> None:
        if self.failures:
            _abort(context, self.failures.pop(0))


@contextmanager
def serve_router(router: FakeRouter) -> Iterator[str]:
    """The router on a free port; its address."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        add_RouterServiceServicer_to_server(router, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()
