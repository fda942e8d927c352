"""A whole small cluster in the test's event loop: router, encoder front with one replica, and a combined worker."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from redis.asyncio import Redis

from common.rpc.server import RpcServer
from common.store.client import connect
from common.store.registry import Registration
from services.encoder.desk import Desk
from services.encoder.load import Load
from services.encoder.replica import Replica
from services.encoder.servicer import FULL_NAME, EncoderServicer
from services.encoder.settings import EncoderSettings
from services.router.service import RouterProcess
from services.router.settings import RouterSettings
from services.worker import __main__ as combined_main
from services.worker.settings import CombinedSettings
from tests.encoding import png
from tests.pictures import noise
from tests.workers import running
from triptych.v1 import encoder_pb2_grpc, worker_pb2

MODEL = Path(__file__).parents[2] / "models" / "triptych-demo"
# No answer of a degraded cluster takes longer, however busy the machine is.
PATIENCE_S = 40


@dataclass
class Rig:
    """`redis` reaches the server directly, whatever stands between it and the cluster."""

    http: httpx.AsyncClient
    replica: Replica
    desk: Desk

    async def ask(self, picture: bytes | None = None, text: str = "what is this?") -> httpx.Response:
        """One greedy answer of a few tokens, with a picture as a data URL if there is one."""
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if picture is not None:
            url = "data:image/png;base64," + base64.b64encode(picture).decode()
            content.insert(0, {"type": "image_url", "image_url": {"url": url}})
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
        async with asyncio.timeout(PATIENCE_S):
            return await self.http.post("/v1/chat/completions", json=body)

    async def degraded(self) -> list[str]:
        """What the router knows to be degraded; it is ready nevertheless."""
        answer = await self.http.get("/readyz")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["degraded"])

    async def say(self, picture: bytes | None = None) -> str:
        """The answer's text."""
        answer = await self.ask(picture)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])


def picture(seed: int, side: int = 64) -> bytes:
    """A file nobody has sent before."""
    return png(noise(side, side, seed=seed))


@asynccontextmanager
async def open_rig(redis_url: str, **encoder: Any) -> AsyncIterator[Rig]:
    """Everything up and seen by the router; `encoder` are further settings of the encoder."""
    common = {"model": MODEL, "redis_url": redis_url, "drain_grace_s": 0.5}
    async with AsyncExitStack() as stack:
        redis = connect(redis_url)
        stack.push_async_callback(redis.aclose)
        settings = EncoderSettings.model_validate({**common, **encoder})
        replica, desk = await open_encoder(stack, redis, settings)
        worker = combined_main.build(CombinedSettings.model_validate({**common, "blocks": 512}))
        await stack.enter_async_context(running([worker]))
        router = RouterProcess(RouterSettings.model_validate({**common, "http_port": 0}))
        stack.push_async_callback(router.stop)
        await router.start()
        url = f"http://127.0.0.1:{router.http_port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            while (await http.get("/readyz")).status_code != 200:  # noqa: ASYNC110 nothing tells us
                await asyncio.sleep(0.05)
        yield Rig(http, replica, desk)


async def open_encoder(stack: AsyncExitStack, redis: Redis, settings: EncoderSettings) -> tuple[Replica, Desk]:
    """One replica behind its servicer, without Ray, in the registry."""
    link = connect(settings.redis_url)
    stack.push_async_callback(link.aclose)
    replica, desk = Replica(settings.for_replica(), link), Desk()
    server = RpcServer("127.0.0.1", 0)
    servicer = EncoderServicer(replica.ensure, Load(settings.max_pending_tokens), desk)
    server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer, FULL_NAME)
    address = f"127.0.0.1:{await server.start()}"
    stack.push_async_callback(server.drain, 0.5)
    loaded = replica.describe()

    def info() -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(
            instance_id="encoder-of-the-rig",
            role=worker_pb2.WORKER_ROLE_ENCODER,
            address=address,
            model=settings.served_name,
            model_fingerprint=loaded.model_fingerprint,
            preprocessing_fingerprint=loaded.preprocessing_fingerprint,
            dtype=settings.dtype,
            degraded=replica.record.report().replica.degraded,
        )

    registration = Registration(redis, info)
    stack.push_async_callback(registration.close)
    registration.start()
    return replica, desk
