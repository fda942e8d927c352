"""Who goes next, who waits and who is turned away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.job import Job
from services.router.placing.cacheview import CacheView
from services.router.placing.cluster import Cluster
from services.router.placing.ledger import Ledger
from services.router.placing.loads import Loads
from services.router.waiting.capacity import Capacity
from services.router.waiting.pace import Pace
from services.router.waiting.queue import FairQueue, Ticket
from services.router.waiting.turnstile import Slot, Turnstile
from triptych.errors import DeadlineExceededError, ResourceExhaustedError
from triptych.v1.types_pb2 import KvLayout, Prompt, SamplingParams
from triptych.v1.worker_pb2 import GetLoadResponse, WatchCacheResponse, WorkerInfo, WorkerRole


def ticket(tenant: str = "a", cost: int = 10, **fields: float) -> Ticket:
    return Ticket(tenant, cost, deadline=100.0, **fields)  # type: ignore[arg-type]


def serve(queue: FairQueue[Ticket], count: int) -> list[Ticket]:
    served = []
    for _ in range(count):
        head = queue.head()
        assert head is not None
        queue.serve(head)
        served.append(head)
    return served


def test_tenants_share_by_weight() -> None:
    queue: FairQueue[Ticket] = FairQueue(100)
    for _ in range(40):
        queue.push(ticket("heavy", weight=3.0))
        queue.push(ticket("light", weight=1.0))
    assert Counter(each.tenant for each in serve(queue, 40)) == {"heavy": 30, "light": 10}


def test_a_flood_of_one_tenant_does_not_delay_another() -> None:
    queue: FairQueue[Ticket] = FairQueue(100)
    for _ in range(50):
        queue.push(ticket("flood"))
    serve(queue, 10)
    late = ticket("late")
    queue.push(late)
    assert late in serve(queue, 2)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.integers(-1, 1)), max_size=30),
    st.sampled_from(["a", "b", "new"]),
    st.integers(0, 10),
)
def test_what_goes_before_a_request_is_known(before: list[tuple[str, int, int]], tenant: str, served: int) -> None:
    queue: FairQueue[Ticket] = FairQueue(100)
    for each, cost, priority in before:
        queue.push(ticket(each, cost, priority=priority, weight=2.0 if each == "a" else 1.0))
    serve(queue, min(served, len(queue)))
    mine = ticket(tenant, weight=2.0 if tenant == "a" else 1.0)
    ahead = queue.ahead(mine)
    queue.push(mine)
    order = serve(queue, len(queue))
    truth = sum(each.cost for each in order[: order.index(mine)])
    # Of tenants that are even the one that came first goes first; it is taken to be another one.
    assert truth <= ahead <= truth + (0 if tenant == "new" else 100)


def test_large_requests_count_for_more() -> None:
    queue: FairQueue[Ticket] = FairQueue(100)
    for _ in range(12):
        queue.push(ticket("large", cost=30))
        queue.push(ticket("small", cost=10))
    assert Counter(each.tenant for each in serve(queue, 12)) == {"large": 3, "small": 9}


def test_priority_decides_within_a_tenant_only() -> None:
    queue: FairQueue[Ticket] = FairQueue(100)
    usual, urgent, other = ticket("a"), ticket("a", priority=5), ticket("b")
    for each in (usual, urgent, other):
        queue.push(each)
    assert serve(queue, 3) == [urgent, other, usual]


def test_a_full_queue_turns_away_the_least_urgent() -> None:
    queue: FairQueue[Ticket] = FairQueue(2)
    first, second = ticket(), ticket()
    assert [queue.push(first), queue.push(second)] == [None, None]
    late = ticket()
    assert queue.push(late) is late
    assert queue.push(ticket(priority=1)) is second
    assert queue.push(ticket("other")) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.integers(-2, 2), st.booleans()), max_size=60))
def test_nothing_is_lost_and_nothing_counted_twice(steps: list[tuple[str, int, int, bool]]) -> None:
    queue: FairQueue[Ticket] = FairQueue(4)
    waiting: set[Ticket] = set()
    for tenant, cost, priority, take in steps:
        one = ticket(tenant, cost, priority=priority)
        waiting |= {one}
        waiting -= {queue.push(one)} if len(waiting) else set()
        if take and (head := queue.head()):
            queue.serve(head)
            waiting.remove(head)
    assert set(queue) == waiting
    assert (len(queue), queue.cost) == (len(waiting), sum(each.cost for each in waiting))


def test_the_pace_is_that_of_the_last_half_minute() -> None:
    pace = Pace()
    for second in range(100, 111):
        pace.note(cost=50, held_s=2.0, now=float(second))
    assert pace.rate(110.0) == 50.0
    assert (pace.wait_s(200, 110.0), round(pace.service_s(100), 6)) == (4.0, 4.0)
    assert (pace.rate(1000.0), pace.retry_s(10**9, 110.0), pace.retry_s(1, 1000.0)) == (None, 60.0, 1.0)


def decode(name: str = "d", **fields: object) -> WorkerInfo:
    layout = KvLayout(block_size=10)
    role = WorkerRole.WORKER_ROLE_DECODE
    return WorkerInfo(instance_id=name, address=name, role=role, model="m", num_blocks=10, layout=layout, **fields)  # type: ignore[arg-type]


def capacity(*workers: WorkerInfo, overcommit: float = 1.0, booked: int = 0, **load: int) -> Capacity:
    view, ledger = CacheView(10), Ledger()
    for info in workers:
        ledger.book(info.instance_id, booked)
        view.apply(info.address, WatchCacheResponse(sequence=1, snapshot=True, load=GetLoadResponse(**load)))
    return Capacity(Cluster(lambda: workers, "m", "c", "p"), Loads(ledger, view), overcommit)


def test_decode_holds_as_much_as_its_blocks() -> None:
    fits = capacity(decode("a"), decode("b")).fits
    assert (fits(20, taken=180, running=1), fits(21, taken=180, running=1)) == (True, False)
    generous = capacity(decode(), booked=200, overcommit=2.0).fits
    assert (generous(100, taken=100, running=1), generous(101, taken=100, running=1)) == (True, False)
    assert not capacity(decode(), overcommit=2.0, blocks_in_use=10).fits(1, taken=1, running=1)


def test_decode_runs_as_many_as_its_batch() -> None:
    fits = capacity(decode(max_sequences=4)).fits
    assert (fits(1, taken=4, running=4), fits(1, taken=5, running=5)) == (True, False)
    assert not capacity(decode(max_sequences=4), running_requests=4, waiting_requests=1).fits(1, taken=1, running=1)


def test_alone_or_without_workers_everything_goes() -> None:
    assert capacity(decode()).fits(10**6, taken=0, running=0)
    assert capacity().fits(10**6, taken=10**6, running=9)


class Gate:
    """A turnstile with room for `most` tokens."""

    def __init__(self, most: int = 100, max_queued: int = 10) -> None:
        self.shed: list[str] = []
        self.turnstile = Turnstile(capacity(decode()), max_queued, self.shed.append)

    async def enter(self, cost: int = 100, within_s: float = 60.0, **fields: object) -> Slot:
        deadline = asyncio.get_running_loop().time() + within_s
        prompt, sampling = Prompt(token_ids=[1]), SamplingParams(max_tokens=cost - 1)
        return await self.turnstile.enter(Job("r", prompt, sampling, (), (), deadline, {}, **fields))  # type: ignore[arg-type]

    async def waiting(self, count: int) -> None:
        while len(self.turnstile.queue) != count:  # noqa: ASYNC110 - nothing tells us
            await asyncio.sleep(0)


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate(max_queued=2)
    yield gate
    gate.turnstile.close()
    assert (len(gate.turnstile.queue), gate.turnstile.taken, gate.turnstile.running) == (0, 0, 0)


async def test_whoever_waits_goes_when_there_is_room(gate: Gate) -> None:
    first = await gate.enter()
    waiting = asyncio.create_task(gate.enter())
    await gate.waiting(1)
    first.release()
    first.release()
    (await waiting).release()


async def test_over_the_bound_the_client_is_told_when_to_come_back(gate: Gate) -> None:
    first = await gate.enter()
    waiting = [asyncio.create_task(gate.enter()) for _ in range(2)]
    await gate.waiting(2)
    with pytest.raises(ResourceExhaustedError) as caught:
        await gate.enter()
    assert (caught.value.retry_after_s, gate.shed) == (1.0, ["queue_full"])
    urgent = asyncio.create_task(gate.enter(priority=1))
    with pytest.raises(ResourceExhaustedError):
        await waiting[1]
    first.release()
    (await urgent).release()
    (await waiting[0]).release()


async def test_who_leaves_while_waiting_leaves_nothing_behind(gate: Gate) -> None:
    first = await gate.enter()
    waiting = asyncio.create_task(gate.enter())
    await gate.waiting(1)
    first.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_deadline_ends_the_wait(gate: Gate) -> None:
    first = await gate.enter()
    with pytest.raises(DeadlineExceededError):
        await gate.enter(within_s=0.01)
    first.release()
    assert gate.shed == ["deadline"]


async def test_a_flood_of_one_tenant_costs_nobody_else_the_deadline(gate: Gate) -> None:
    for held_s in (9.0, 10.0):
        gate.turnstile.pace.note(100, held_s, gate.turnstile.now() - 10 + held_s)
    first = await gate.enter()
    flood = [asyncio.create_task(gate.enter(1000, within_s=900.0, tenant="flood")) for _ in range(2)]
    await gate.waiting(2)
    with pytest.raises(ResourceExhaustedError, match="its turn comes in about 20"):
        await gate.enter(tenant="flood", within_s=25.0)
    late = asyncio.create_task(gate.enter(tenant="late", within_s=25.0))
    await gate.waiting(3)
    first.release()
    for task in (*flood[:1], late, *flood[1:]):
        (await task).release()


async def test_what_cannot_make_its_deadline_is_not_started(gate: Gate) -> None:
    for held_s in (9.0, 10.0):
        gate.turnstile.pace.note(100, held_s, gate.turnstile.now() - 10 + held_s)
    first = await gate.enter()
    with pytest.raises(ResourceExhaustedError, match="must be finished in"):
        await gate.enter(within_s=5.0)
    waiting = asyncio.create_task(gate.enter(within_s=50.0))
    await gate.waiting(1)
    first.release()
    (await waiting).release()
