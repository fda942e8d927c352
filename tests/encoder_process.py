"""The encoder as a process of its own, and calls to it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import psutil

from triptych.status import rpc_errors
from triptych.v1 import encoder_pb2, encoder_pb2_grpc, worker_pb2, worker_pb2_grpc

START_S = 200


class Encoder:
    """`python -m services.encoder` with everything it writes in one directory."""

    def __init__(self, model: Path, redis_url: str, directory: Path, *more: str, **environment: str) -> None:
        self.log = directory / "log"
        self.temporary = directory / "tmp"
        self.temporary.mkdir(parents=True)
        environment = {**os.environ, "TMPDIR": str(self.temporary), "HOME": str(directory), **environment}
        flags = ["--model", str(model), "--redis-url", redis_url, "--port", "0", *more]
        command = [sys.executable, "-m", "services.encoder", *flags]
        with self.log.open("wb") as log:
            self.process = psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    @property
    def address(self) -> str:
        """Where it listens, once it is ready."""
        found = re.search(r"encoding on (\S+:\d+),", self.text())
        assert found is not None, self.text()
        return found[1]

    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + START_S
        while line not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def replicas(self) -> list[psutil.Process]:
        """Ray's processes that run our code, those included that are still starting."""
        return [child for child in self.process.children(recursive=True) if "ServeReplica" in _command(child)]

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(START_S))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


async def encode(
    channel: grpc.aio.Channel, *images: encoder_pb2.EncodeImage, **metadata: str
) -> list[encoder_pb2.EncodeResponse]:
    stub, request = encoder_pb2_grpc.EncoderServiceStub(channel), encoder_pb2.EncodeRequest(images=images)
    call = stub.Encode(request, timeout=START_S, metadata=tuple(metadata.items()))
    with rpc_errors("encoder"):
        return [response async for response in call]


async def load(channel: grpc.aio.Channel) -> worker_pb2.GetLoadResponse:
    """All but the time of day."""
    answer = await worker_pb2_grpc.WorkerServiceStub(channel).GetLoad(worker_pb2.GetLoadRequest())
    answer.ClearField("at_unix_ms")
    return answer


async def idle(channel: grpc.aio.Channel) -> None:
    async with asyncio.timeout(30):
        while (await load(channel)) != worker_pb2.GetLoadResponse():  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.05)
