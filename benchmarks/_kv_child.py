"""Starts and talks to the receiving process of the KV benchmarks."""

from __future__ import annotations

import subprocess
import sys

import psutil

from triptych.v1 import kv_pb2


class Child:
    """A receiving process: one line in, one line out."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks._kv_receiver", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line()

    def line(self) -> str:
        """Wait for its next line."""
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def ask(self, question: str = "") -> str:
        """Have it prepare for a transfer, and get its address or ticket."""
        assert self._process.stdin
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self.line()

    def ticket(self, question: str = "") -> kv_pb2.KvTicket:
        """`ask` of a process that answers with tickets."""
        return kv_pb2.KvTicket.FromString(bytes.fromhex(self.ask(question)))

    def cpu_s(self) -> float:
        """Processor seconds it has used, in ticks of 10 ms."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
