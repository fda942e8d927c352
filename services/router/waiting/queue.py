"""Who goes next when there is room: a bounded queue for each tenant, served by weight. Awaits nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST_PRIORITY = 8


@dataclass(eq=False)
class Ticket:
    """A request that waits. `cost` is in tokens of KV, `deadline` in seconds on the clock of the event loop.

    Among requests of one tenant a higher `priority` goes first, from `-MOST_PRIORITY` to `MOST_PRIORITY`; tenants share
    by `weight`, whatever their priorities.
    """

    tenant: str
    cost: int
    deadline: float
    priority: int = 0
    weight: float = 1.0


T = TypeVar("T", bound=Ticket)


@dataclass
class _Lane(Generic[T]):
    tickets: list[T] = field(default_factory=list)
    # Virtual time at which what the tenant got so far is worth its share.
    served: float = 0.0

    def cost_until(self, time: float) -> int:
        """Cost of those who go before a ticket of another lane that goes at this virtual time."""
        cost, served = 0, self.served
        for ticket in self.tickets:
            if served > time:
                break
            cost += ticket.cost
            served += ticket.cost / ticket.weight
        return cost


class FairQueue(Generic[T]):
    """Start-time fair queueing over tenants: whoever got the least per weight is next, first come first served within.

    A tenant that was away has no claim on the time it missed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lanes: dict[str, _Lane[T]] = {}
        self._now = 0.0
        self.cost = 0

    def __len__(self) -> int:
        return sum(len(lane.tickets) for lane in self._lanes.values())

    def lengths(self) -> dict[str, int]:
        """Waiting requests of each tenant that has some."""
        return {tenant: len(lane.tickets) for tenant, lane in self._lanes.items() if lane.tickets}

    def push(self, ticket: T) -> T | None:
        """Queue a ticket; which one is turned away for it, if the tenant's queue is full: perhaps itself."""
        lane = self._lane(ticket.tenant)
        at = next((i for i, other in enumerate(lane.tickets) if other.priority < ticket.priority), len(lane.tickets))
        lane.tickets.insert(at, ticket)
        self.cost += ticket.cost
        if len(lane.tickets) <= self._most:
            return None
        last = lane.tickets[-1]
        self.remove(last)
        return last

    def head(self) -> T | None:
        """Who is next; None when nobody waits."""
        lanes = [lane for lane in self._lanes.values() if lane.tickets]
        return min(lanes, key=lambda lane: lane.served).tickets[0] if lanes else None

    def serve(self, ticket: T) -> None:
        """`ticket`, the head, goes."""
        lane = self._lanes[ticket.tenant]
        self._now = lane.served
        lane.served += ticket.cost / ticket.weight
        self.remove(ticket)

    def ahead(self, ticket: Ticket) -> int:
        """Cost of those who would go before `ticket` if nobody came after it."""
        lane = self._lanes.get(ticket.tenant, _Lane(served=self._now))
        earlier = [other for other in lane.tickets if other.priority >= ticket.priority]
        begins = max(lane.served, self._now) + sum(other.cost / other.weight for other in earlier)
        others = (each for tenant, each in self._lanes.items() if tenant != ticket.tenant)
        return sum(other.cost for other in earlier) + sum(each.cost_until(begins) for each in others)

    def remove(self, ticket: T) -> None:
        """Forget a ticket; harmless when it is not here."""
        lane = self._lanes.get(ticket.tenant)
        if lane is not None and ticket in lane.tickets:
            lane.tickets.remove(ticket)
            self.cost -= ticket.cost
        self._tidy()

    def __iter__(self) -> Iterator[T]:
        return (ticket for lane in self._lanes.values() for ticket in lane.tickets)

    def _lane(self, tenant: str) -> _Lane[T]:
        lane = self._lanes.setdefault(tenant, _Lane(served=self._now))
        if not lane.tickets:
            lane.served = max(lane.served, self._now)
        return lane

    def _tidy(self) -> None:
        """Lanes that a new one would equal need not be kept; with nobody waiting, time starts anew."""
        if not any(lane.tickets for lane in self._lanes.values()):
            self._lanes.clear()
            self._now = 0.0
            return
        for tenant in [name for name, lane in self._lanes.items() if not lane.tickets and lane.served <= self._now]:
            del self._lanes[tenant]
