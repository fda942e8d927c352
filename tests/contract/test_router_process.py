"""The router as a process of its own: small, and ended by a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.contract.router_bench import MODEL
from tests.valkey import free_port

RSS_LIMIT_BYTES = 250 * 2**20


@pytest.fixture
def router(valkey_url: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    flags = ["--model", str(MODEL), "--redis-url", valkey_url, "--port", "0", "--http-port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "services.router", *flags])
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def wait_until_alive(process: subprocess.Popen[bytes], url: str) -> None:
    while process.poll() is None:
        try:
            httpx.get(f"{url}/healthz")
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the router did not start")


def test_it_needs_no_torch_and_ends_cleanly(router: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = router
    wait_until_alive(process, url)
    maps = [mapping.path for mapping in psutil.Process(process.pid).memory_maps()]
    assert not any("torch" in path for path in maps)
    assert psutil.Process(process.pid).memory_info().rss < RSS_LIMIT_BYTES
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


def test_a_bad_setting_is_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.router", "--model", str(MODEL / "nowhere")], capture_output=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.decode().strip().splitlines()[-1].startswith("error: ")
