"""Lets requests through to the workers as there is room, and turns away what would only wait in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.router.job import Job
from services.router.waiting.capacity import Capacity
from services.router.waiting.pace import Pace
from services.router.waiting.queue import FairQueue, Ticket
from triptych.errors import DeadlineExceededError, ResourceExhaustedError

# Room also comes without a request of ours ending.
LOOK_AGAIN_S = 0.1
Count = Callable[[str], None]


class Slot:
    """A place among the running; `release` gives it back, twice is harmless."""

    def __init__(self, turnstile: Turnstile, cost: int) -> None:
        self._turnstile, self._cost, self._since = turnstile, cost, turnstile.now()
        self._held = True

    def release(self) -> None:
        """The request has ended."""
        if self._held:
            self._held = False
            self._turnstile.leave(self._cost, self._since)


@dataclass(eq=False)
class _Waiting(Ticket):
    slot: asyncio.Future[Slot] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def refuse(self, error: ResourceExhaustedError) -> None:
        """Tell it that it waits in vain."""
        if not self.slot.done():
            self.slot.set_exception(error)


class Turnstile:
    """`shed` counts those turned away, by reason."""

    def __init__(self, capacity: Capacity, max_queued: int, shed: Count) -> None:
        self._capacity, self._shed = capacity, shed
        self.queue: FairQueue[_Waiting] = FairQueue(max_queued)
        self.pace = Pace()
        self.taken = self.running = 0
        self._look: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Look no more; everybody has left."""
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def now(self) -> float:
        """The event loop's clock, in seconds."""
        return asyncio.get_running_loop().time()

    async def enter(self, job: Job) -> Slot:
        """Wait for a place. ResourceExhaustedError says when to come back, DeadlineExceededError: too late."""
        waiting = _Waiting(job.tenant, job.most_tokens, job.deadline, job.priority, job.weight)
        if len(self.queue) == 0 and self._fits(waiting):
            return self._take(waiting)
        self._check_wait(waiting)
        if (loser := self.queue.push(waiting)) is not None:
            self._turn_away(loser, "queue_full", f"{len(self.queue)} requests wait already")
        self._pump()
        return await self._taken(waiting)

    def leave(self, cost: int, since: float) -> None:
        """For `Slot`: somebody has ended."""
        self.taken -= cost
        self.running -= 1
        self.pace.note(cost, self.now() - since, self.now())
        self._pump()

    async def _taken(self, waiting: _Waiting) -> Slot:
        try:
            async with asyncio.timeout_at(waiting.deadline):
                return await waiting.slot
        except TimeoutError:
            self._shed("deadline")
            self._give_up(waiting)
            raise DeadlineExceededError("the deadline passed while the request waited for a free place") from None
        except asyncio.CancelledError:
            self._give_up(waiting)
            raise

    def _give_up(self, waiting: _Waiting) -> None:
        self.queue.remove(waiting)
        done = waiting.slot
        if done.done() and not done.cancelled() and done.exception() is None:
            # Let through in the very moment in which it gave up.
            done.result().release()

    def _pump(self) -> None:
        """Let through whoever is next, as long as there is room."""
        while (head := self.queue.head()) is not None and self._fits(head):
            self._serve(head)
        if len(self.queue) and self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._pump()

    def _serve(self, waiting: _Waiting) -> None:
        if waiting.slot.done():
            self.queue.remove(waiting)
        elif self.now() + self.pace.service_s(waiting.cost) > waiting.deadline:
            self.queue.remove(waiting)
            self._turn_away(waiting, "deadline", "the request could not be finished by its deadline any more")
        else:
            self.queue.serve(waiting)
            waiting.slot.set_result(self._take(waiting))

    def _take(self, waiting: _Waiting) -> Slot:
        self.taken += waiting.cost
        self.running += 1
        return Slot(self, waiting.cost)

    def _fits(self, waiting: _Waiting) -> bool:
        return self._capacity.fits(waiting.cost, self.taken, self.running)

    def _check_wait(self, waiting: _Waiting) -> None:
        ahead = self.queue.ahead(waiting)
        wait = self.pace.wait_s(ahead, self.now())
        left = waiting.deadline - self.now()
        if wait + self.pace.service_s(waiting.cost) > left:
            self._shed("deadline")
            message = f"its turn comes in about {wait:.1f} s, and the request must be finished in {left:.1f} s"
            raise ResourceExhaustedError(message, retry_after_s=self.pace.retry_s(ahead, self.now()))

    def _turn_away(self, waiting: _Waiting, reason: str, message: str) -> None:
        self._shed(reason)
        retry_s = self.pace.retry_s(self.queue.cost, self.now())
        waiting.refuse(ResourceExhaustedError(message, retry_after_s=retry_s))
