"""The encode stage of one request: which replica gets which picture, and the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import grpc

from common.rpc.channels import Channels
from common.rpc.instance import instance_metadata
from common.tracing import outgoing, span
from services.router.figures.account import Account
from services.router.job import Job
from services.router.placing.filters import Avoid
from services.router.placing.ledger import Booking, Ledger
from services.router.placing.placement import Placement
from services.router.running.calls import Trouble
from services.router.running.pixels import Pixels
from triptych.errors import ImagesNotFoundError, InternalError
from triptych.v1.encoder_pb2 import EncodeImage, EncodeRequest, EncodeResponse
from triptych.v1.encoder_pb2_grpc import EncoderServiceStub
from triptych.v1.prefill_pb2 import ImageReady
from triptych.v1.worker_pb2 import WorkerInfo

Ready = Callable[[ImageReady], None]
Share = tuple[WorkerInfo, list[EncodeImage]]


class Encoding:
    """Asks encoders for all embeddings of a job and announces each once it is ready."""

    def __init__(
        self,
        job: Job,
        avoid: Collection[str],
        placement: Placement,
        ledger: Ledger,
        channels: Channels,
        account: Account,
        pixels: Pixels,
        trouble: Trouble,
    ) -> None:
        self._job, self._placement = job, placement
        self._ledger, self._channels, self._account = ledger, channels, account
        self._pixels, self._trouble = pixels, trouble
        # Chosen now: those known at admission may have been replaced by others that compute the same.
        known = placement.equal_encoders(job.encoders) if job.images else []
        self._encoders = Avoid(avoid)(known)
        self._bookings: dict[str, Booking] = {}

    async def run(self, ready: Ready) -> None:
        """Return when every embedding was announced; the first failure ends all calls and is raised."""
        self._account.encode_began()
        try:
            with span("encode", pictures=len(self._job.images)):
                async with asyncio.TaskGroup() as group:
                    for worker, images in self._spread():
                        group.create_task(self._encode(worker, images, ready))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            for booking in self._bookings.values():
                booking.release()

    def _spread(self) -> list[Share]:
        """Every picture goes where the fewest tokens are pending, the largest first."""
        shares: dict[str, Share] = {}
        for image in sorted(self._job.images, key=lambda image: -image.tokens):
            worker = self._placement.encoder(self._encoders)
            self._bookings[image.embedding_key] = self._ledger.book(worker.instance_id, image.tokens)
            shares.setdefault(worker.instance_id, (worker, []))[1].append(image)
        return list(shares.values())

    async def _encode(self, worker: WorkerInfo, images: list[EncodeImage], ready: Ready) -> None:
        waiting = {image.embedding_key: image for image in images}
        try:
            with self._trouble.watching("encode", worker):
                await self._receive_or_send(worker, waiting, ready)
        except ImagesNotFoundError as error:
            # The client uploads what it can recognise.
            raise ImagesNotFoundError([self._job.names.get(name, name) for name in error.digests]) from error
        if waiting:
            raise InternalError(f"the encoder left out {len(waiting)} of {len(images)} embeddings")

    async def _receive_or_send(self, worker: WorkerInfo, waiting: dict[str, EncodeImage], ready: Ready) -> None:
        try:
            await self._receive(worker, waiting, ready)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND or not await self._send(worker, waiting):
                raise
            await self._receive(worker, waiting, ready)

    async def _receive(self, worker: WorkerInfo, waiting: dict[str, EncodeImage], ready: Ready) -> None:
        async for response in self._call(worker, list(waiting.values())):
            if waiting.pop(response.embedding_key, None):
                self._bookings[response.embedding_key].release()
                self._account.encoded(response)
                held_at = worker.address if response.held_here else ""
                ready(ImageReady(embedding_key=response.embedding_key, held_at=held_at))

    async def _send(self, worker: WorkerInfo, waiting: dict[str, EncodeImage]) -> int:
        """The encoder finds files missing, because the store is down or was emptied: send what is at hand."""
        return await self._pixels.send(worker.address, waiting.values(), self._job.remaining_s())

    def _call(
        self, worker: WorkerInfo, images: list[EncodeImage]
    ) -> grpc.aio.UnaryStreamCall[EncodeRequest, EncodeResponse]:
        stub = EncoderServiceStub(self._channels.get(worker.address))
        request = EncodeRequest(request_id=self._job.request_id, images=images)
        metadata = instance_metadata(worker.instance_id) + outgoing()
        return stub.Encode(request, timeout=self._job.remaining_s(), metadata=metadata)
