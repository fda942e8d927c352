"""Runs work that recurses deeply.

The library follows references between rules on the native stack: a chain of a thousand, which is easily written, would
overflow the stack of an ordinary thread and end the process. The limit on a grammar's length bounds the chain, and a
thread with this stack has room for the longest; only pages that are used cost memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
STACK_BYTES = 256 << 20
_lock = threading.Lock()


def on_deep_stack(work: Callable[[], T]) -> T:
    """What `work` returns or raises, run in a thread of its own while this one waits."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            done.set_exception(error)

    thread = threading.Thread(target=run, name="grammar")
    # The size holds for every thread that is started until it is set back.
    with _lock:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    return done.result()
