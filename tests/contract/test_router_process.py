"""The router as a process of its own: small, and ended by a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from services.router.service import RouterProcess
from services.router.settings import RouterSettings
from tests.contract.router_bench import MODEL
from tests.router_process import router_process
from triptych import AsyncClient

RSS_LIMIT_BYTES = 250 * 2**20


def test_it_needs_no_torch_and_ends_cleanly(valkey_url: str, tmp_path: Path) -> None:
    with router_process(valkey_url, tmp_path) as router:
        assert httpx.get(f"{router.url}/healthz").status_code == 200
        process = psutil.Process(router.process.pid)
        assert not any("torch" in mapping.path for mapping in process.memory_maps())
        assert process.memory_info().rss < RSS_LIMIT_BYTES
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(timeout=30) == 0


async def test_it_listens_on_ipv6(valkey_url: str) -> None:
    settings = RouterSettings(model=MODEL, redis_url=valkey_url, host="[::1]", http_port=0, drain_grace_s=0)
    router = RouterProcess(settings)
    await router.start()
    async with AsyncClient(f"[::1]:{router.port}") as client, httpx.AsyncClient() as http:
        assert [card.name for card in await client.list_models()] == [MODEL.name]
        assert (await http.get(f"http://[::1]:{router.http_port}/healthz")).status_code == 200
    await router.stop()


def test_a_bad_setting_is_one_sentence() -> None:
    command = [sys.executable, "-m", "services.router", "--model", str(MODEL / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
