"""The loop of an engine: plan on the event loop, compute in one thread, apply on the event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from triptych.errors import InternalError, TriptychError

log = logging.getLogger(__name__)
Work = TypeVar("Work")
Result = TypeVar("Result")


class StepLoop(Generic[Work, Result]):
    """All state changes happen on the event loop, so engines need no locks; only `execute` runs in the thread.

    `plan` gives the next step's work or None when there is none; `apply` takes the result; `fail` ends the requests of
    a step that raised, after which the loop goes on with the others. Two engines of a process share `thread`, whose
    one worker runs their steps in turn.
    """

    def __init__(
        self,
        plan: Callable[[], Work | None],
        execute: Callable[[Work], Result],
        apply: Callable[[Work, Result], None],
        fail: Callable[[Work, TriptychError], None],
        thread: ThreadPoolExecutor,
    ) -> None:
        self._plan, self._execute, self._apply, self._fail = plan, execute, apply, fail
        self._wake = asyncio.Event()
        self._thread = thread
        self._task: asyncio.Task[None] | None = None
        self._began_s: float | None = None

    def start(self) -> None:
        """Begin; needs a running event loop."""
        self._task = asyncio.create_task(self._run(), name="engine")
        self._task.add_done_callback(_stop_process)

    def wake(self) -> None:
        """There may be work."""
        self._wake.set()

    def alive(self, stall_s: float) -> bool:
        """False once the loop has ended, or while one step runs for longer than `stall_s` seconds.

        Being busy is a sequence of steps, and waiting for work is none: neither counts.
        """
        began = self._began_s
        running = self._task is not None and not self._task.done()
        return running and (began is None or time.monotonic() - began < stall_s)

    async def close(self) -> None:
        """Stop after the running step."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            # No await between a step's end and the next plan: what the step freed is ours before another engine's.
            # The wake-up is cleared before planning: what planning itself sets free must not be forgotten.
            self._wake.clear()
            work = self._plan()
            if work is None:
                await self._wake.wait()
            else:
                await self._step(work)

    async def _step(self, work: Work) -> None:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, self._timed, work)
            self._apply(work, result)
        except TriptychError as error:
            self._fail(work, error)
        except Exception:
            # One bad step must not take the worker down: its requests fail, the rest go on.
            log.exception("a step failed")
            self._fail(work, InternalError("the engine failed on this request; see the worker's log"))

    def _timed(self, work: Work) -> Result:
        # Here, in the thread: waiting for another engine's step is not ours.
        self._began_s = time.monotonic()
        try:
            return self._execute(work)
        finally:
            self._began_s = None


def _stop_process(task: asyncio.Task[None]) -> None:
    """A worker whose engine has ended must not stay in the registry, where every request would hang."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the engine has failed; the worker stops", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
