"""A router process in front of workers that compute nothing, with a Valkey of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.valkey import ValkeyServer, free_port

MODEL = Path("models/triptych-demo")


@dataclass(frozen=True)
class Front:
    """Where the router listens, its process, that of all workers, and the addresses of one pair of them."""

    address: str
    url: str
    process: psutil.Process
    workers: psutil.Process
    prefill: str
    decode: str


@asynccontextmanager
async def running_router(
    step_ms: float = 0,
    max_running: int = 0,
    workers: int = 1,
    module: str = "services.router",
    more: Sequence[str] = (),
) -> AsyncIterator[Front]:
    """Everything up and ready for text; `module` is what runs as the router, `more` are further flags of it."""
    valkey = ValkeyServer()
    valkey.start()
    pipe = asyncio.subprocess.PIPE
    fleet_command = ["-m", "benchmarks._fleet", valkey.url, MODEL.name, str(step_ms), str(max_running), str(workers)]
    fleet = await asyncio.create_subprocess_exec(sys.executable, *fleet_command, stdin=pipe, stdout=pipe)
    port, http_port = free_port(), free_port()
    ports = ["--port", str(port), "--http-port", str(http_port)]
    flags = ["--model", str(MODEL), "--redis-url", valkey.url, *ports, "--log-level", "WARNING", *more]
    router = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *flags)
    try:
        assert fleet.stdout is not None
        prefill, decode = (await fleet.stdout.readline()).decode().split()
        url = f"http://127.0.0.1:{http_port}"
        await _ready(url)
        processes = psutil.Process(router.pid), psutil.Process(fleet.pid)
        yield Front(f"127.0.0.1:{port}", url, *processes, prefill, decode)
    finally:
        router.terminate()
        assert fleet.stdin is not None
        fleet.stdin.close()
        await asyncio.gather(router.wait(), fleet.wait())
        valkey.close()


async def _ready(url: str) -> None:
    """Return once all but the encoder is there; text needs none."""
    async with httpx.AsyncClient(base_url=url) as http:
        while True:
            try:
                missing = (await http.get("/readyz")).json()["missing"]
            except httpx.TransportError:
                missing = ["the router"]
            if len(missing) == 1 and "encoder" in missing[0]:
                return
            await asyncio.sleep(0.1)
