"""`python -m benchmarks._fleet REDIS_URL MODEL_NAME STEP_MS MAX_RUNNING WORKERS`: workers that compute nothing.

They speak the real protocol over real gRPC, so that what is measured is the router in front of them. A decode worker
runs `MAX_RUNNING` requests at a time and gives each a token every `STEP_MS`; 0 means at once and without a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

from redis.asyncio import Redis

from common.rpc.server import RpcServer
from common.rpc.worker import FULL_NAME, WorkerServicer
from common.store.client import connect
from common.store.registry import Registration
from triptych.v1 import decode_pb2, decode_pb2_grpc, kv_pb2, prefill_pb2, prefill_pb2_grpc, worker_pb2, worker_pb2_grpc
from triptych.v1.types_pb2 import FINISH_REASON_LENGTH, GeneratedToken, KvLayout

LAYOUT = KvLayout(version=1, dtype="float32", num_layers=4, num_kv_heads=2, head_dim=32, block_size=16)
BLOCKS = 65536
TOKEN = 300


class Stage:
    """What both kinds of worker have: a server and an entry in the registry."""

    def __init__(self, role: worker_pb2.WorkerRole.ValueType, model: str, max_sequences: int) -> None:
        self.info = worker_pb2.WorkerInfo(
            instance_id=uuid.uuid4().hex,
            role=role,
            model=model,
            model_fingerprint="f" * 64,
            layout=LAYOUT,
            num_blocks=BLOCKS,
            max_sequences=max_sequences,
        )
        self.load = worker_pb2.GetLoadResponse()
        self.server = RpcServer("127.0.0.1", 0, [self.info.instance_id])

    async def start(self, redis: Redis) -> None:
        """Listen and announce."""
        service = WorkerServicer(lambda: self.info, lambda: self.load, lambda: None)
        self.server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, service, FULL_NAME)
        self.info.address = f"127.0.0.1:{await self.server.start()}"
        self._registration = Registration(redis, lambda: self.info)
        self._registration.start()

    async def stop(self) -> None:
        """Leave."""
        await self._registration.close()
        await self.server.drain(0)


class Prefill(Stage, prefill_pb2_grpc.PrefillServiceServicer):
    """Says at once that the prompt is computed."""

    def __init__(self, model: str, filled: dict[str, asyncio.Event]) -> None:
        super().__init__(worker_pb2.WORKER_ROLE_PREFILL, model, 0)
        self._filled = filled
        self.server.add(prefill_pb2_grpc.add_PrefillServiceServicer_to_server, self, "triptych.v1.PrefillService")

    async def Prefill(self, request_iterator: Any, context: Any) -> prefill_pb2.PrefillResponse:
        """One prompt."""
        begin = (await anext(aiter(request_iterator))).begin
        self._filled[begin.ticket.reservation_id].set()
        return prefill_pb2.PrefillResponse(computed_tokens=len(begin.prompt.token_ids))


class Decode(Stage, decode_pb2_grpc.DecodeServiceServicer):
    """Gives the same token again and again."""

    def __init__(self, model: str, filled: dict[str, asyncio.Event], step_s: float, most: int) -> None:
        super().__init__(worker_pb2.WORKER_ROLE_DECODE, model, most if step_s else 0)
        self._filled, self._step_s = filled, step_s
        self._room = asyncio.Semaphore(most) if step_s else contextlib.nullcontext()
        self.server.add(decode_pb2_grpc.add_DecodeServiceServicer_to_server, self, "triptych.v1.DecodeService")

    async def Decode(self, request: decode_pb2.DecodeRequest, context: Any) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """One answer."""
        self.load.waiting_requests += 1
        try:
            async with self._room:
                async for event in self._answer(request):
                    yield event
        finally:
            self.load.waiting_requests -= 1

    async def _answer(self, request: decode_pb2.DecodeRequest) -> AsyncIterator[decode_pb2.DecodeResponse]:
        ticket = kv_pb2.KvTicket(reservation_id=uuid.uuid4().hex, layout=LAYOUT)
        filled = self._filled[ticket.reservation_id] = asyncio.Event()
        yield decode_pb2.DecodeResponse(ticket=ticket)
        await filled.wait()
        del self._filled[ticket.reservation_id]
        tokens = decode_pb2.DecodedTokens(tokens=[GeneratedToken(token_id=TOKEN)])
        for _ in range(request.sampling.max_tokens):
            await asyncio.sleep(self._step_s)
            yield decode_pb2.DecodeResponse(tokens=tokens)
        yield decode_pb2.DecodeResponse(finished=decode_pb2.DecodeFinished(reason=FINISH_REASON_LENGTH))


async def main(redis_url: str, model: str, step_ms: str, max_running: str, workers: str) -> None:
    """Serve until stdin ends; the addresses of the first pair are printed."""
    redis, filled = connect(redis_url), dict[str, asyncio.Event]()
    pairs = [
        (Prefill(model, filled), Decode(model, filled, float(step_ms) / 1000, int(max_running)))
        for _ in range(int(workers))
    ]
    for prefill, decode in pairs:
        await prefill.start(redis)
        await decode.start(redis)
    sys.stdout.write(f"{pairs[0][0].info.address} {pairs[0][1].info.address}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for stage in (stage for pair in pairs for stage in pair):
        await stage.stop()
    await redis.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
