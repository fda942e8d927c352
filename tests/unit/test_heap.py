"""Freed memory stays with the process, so that the next message costs no new pages."""

from __future__ import annotations

import resource

from common.kv.filling import CREDITS
from common.kv.wire import CHUNK_BYTES
from common.worker.heap import keep_freed_memory


def faults_of_windows(count: int) -> int:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(count):
        window = [bytes([n]) * CHUNK_BYTES for n in range(CREDITS)]
        window.clear()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_memory_of_messages_is_used_for_the_next_ones() -> None:
    assert keep_freed_memory()
    faults_of_windows(2)
    assert faults_of_windows(5) < CHUNK_BYTES // resource.getpagesize()
