"""`python -m tests.fault.zygote REDIS_URL MODEL CONTROL_PORT`: forks workers quickly, for tests that kill them.

Everything is imported once; then each line on stdin, a role, makes one more worker process, whose pid is printed. The
workers stop at named points (`POINTS`) and ask at the control port whether to go on, so that a test can kill whom it
wants at exactly that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common.kv.sender import KvPush
from common.rpc.lifecycle import Service, run_service
from common.rpc.server import RpcServer
from common.rpc.worker import FULL_NAME as WORKER_NAME
from common.rpc.worker import WorkerServicer
from common.store.client import connect
from common.store.registry import Registration
from services.decode import __main__ as decode_main
from services.decode.engine import DecodeEngine
from services.decode.settings import DecodeSettings
from services.encoder.desk import Desk
from services.encoder.load import Load
from services.encoder.replica import Replica
from services.encoder.servicer import FULL_NAME, EncoderServicer
from services.encoder.settings import EncoderSettings
from services.prefill import __main__ as prefill_main
from services.prefill.engine import PrefillEngine
from services.prefill.settings import PrefillSettings
from triptych.v1 import encoder_pb2_grpc, worker_pb2, worker_pb2_grpc

POINTS = ("encode", "prefill", "transfer", "tokens")
AFTER_TOKENS = 3


class Points:
    """Asks at the control port at each point; goes on when told to, or when nobody is there."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)

    def ask(self, point: str) -> None:
        """Stop here, the whole thread."""
        with contextlib.suppress(OSError), socket.create_connection(self._address) as link:
            link.sendall(f"{point}\n".encode())
            link.recv(1)

    async def ask_later(self, point: str) -> None:
        """Stop here, only the task."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.ask, point)

    def install(self) -> None:
        """Put them where they belong; only for this process."""
        self._around(PrefillEngine, "_execute", lambda *_: self.ask("prefill"))
        self._around(DecodeEngine, "_advance", self._advanced)
        self._before(Replica, "ensure", "encode")
        self._before(KvPush, "finish", "transfer")

    def _advanced(self, engine: Any, job: Any, token: Any) -> None:
        if job.sequence.num_outputs == AFTER_TOKENS:
            self.ask("tokens")

    def _around(self, owner: Any, name: str, before: Callable[..., None]) -> None:
        real = getattr(owner, name)

        def stopping(*args: Any) -> Any:
            before(*args)
            return real(*args)

        setattr(owner, name, stopping)

    def _before(self, owner: Any, name: str, point: str) -> None:
        real = getattr(owner, name)

        async def stopping(*args: Any) -> Any:
            await self.ask_later(point)
            return await real(*args)

        setattr(owner, name, stopping)


class Encoder:
    """A `Service`: one replica behind a front, without Ray."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._settings, self._load = settings, Load(settings.max_pending_tokens)
        self._instance_id = secrets.token_hex(8)

    async def start(self) -> None:
        """Load, listen, register."""
        self._redis = connect(self._settings.redis_url)
        replica = Replica(self._settings.for_replica(), self._redis)
        self._loaded = replica.describe()
        self._server = RpcServer("127.0.0.1", 0, [self._instance_id])
        servicer = EncoderServicer(replica.ensure, self._load, Desk())
        self._server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer, FULL_NAME)
        worker = WorkerServicer(self._info, self._load.response, lambda: None, instances=[self._instance_id])
        self._server.add(worker_pb2_grpc.add_WorkerServiceServicer_to_server, worker, WORKER_NAME)
        self._address = f"127.0.0.1:{await self._server.start()}"
        Registration(self._redis, self._info).start()

    async def stop(self) -> None:
        """Tests kill it."""

    def _info(self) -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(
            instance_id=self._instance_id,
            role=worker_pb2.WORKER_ROLE_ENCODER,
            address=self._address,
            model=self._settings.served_name,
            model_fingerprint=self._loaded.model_fingerprint,
            preprocessing_fingerprint=self._loaded.preprocessing_fingerprint,
            dtype=self._settings.dtype,
        )


def build(role: str, redis_url: str, model: Path) -> Service:
    """A worker, not started."""
    common = {"model": model, "redis_url": redis_url}
    if role == "encoder":
        return Encoder(EncoderSettings.model_validate(common))
    pool = {**common, "blocks": 128}
    if role == "prefill":
        # Small steps, so that a prompt takes several.
        return prefill_main.build(PrefillSettings.model_validate({**pool, "step_tokens": 32}))
    return decode_main.build(DecodeSettings.model_validate(pool))


def main(redis_url: str, model: str, control: str) -> None:
    """Fork until stdin ends, then kill what is left."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pids: list[int] = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            Points(int(control)).install()
            os._exit(run_service(partial(build, line.strip(), redis_url, Path(model))))
        pids.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
