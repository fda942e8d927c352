"""The store against a model, with random steps: what is leased stays, the budget holds, the account is the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from common.store.budget import Budget, Policy
from common.store.client import connect, embedding_key
from common.store.embeddings import EmbeddingStore, Reservation
from common.store.scripts import PREFIX
from tests.valkey import start_valkey

CAP = 100
KEYS = st.sampled_from([f"{number:064x}" for number in range(8)])
REQUESTS = st.sampled_from(["r1", "r2", "r3"])
Result = TypeVar("Result")


class StoreMachine(RuleBasedStateMachine):
    """`leases` is the model: key to the requests that need it. Sizes follow from what was put."""

    url = ""
    policy: Policy = "refcount"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.redis = self.run_(self._connect())
        self.store = EmbeddingStore(self.redis, 60.0, Budget(self.policy, CAP))
        self.leases: dict[str, set[str]] = {}

    async def _connect(self) -> Any:
        return connect(self.url)

    def run_(self, step: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(step)

    @initialize()
    def empty(self) -> None:
        self.run_(self.redis.flushdb())

    @rule(key=KEYS, size=st.integers(1, 130), request=REQUESTS | st.just(""))
    def put(self, key: str, size: int, request: str) -> None:
        stored = self.run_(self.store.put(key, f"owner-{key}", bytes(size), request))
        assert size <= CAP or not stored
        if size <= CAP and not stored:
            # The old value of the key, if there was one, went to make room.
            self.leases.pop(key, None)
        if stored and request:
            self.leases.setdefault(key, set()).add(request)

    @rule(key=KEYS, request=REQUESTS)
    def ask(self, key: str, request: str) -> None:
        answer = self.run_(self.store.reserve(key, "asker", 60.0, request))
        self.run_(self.store.release(key, "asker"))
        if answer is Reservation.READY:
            self.leases.setdefault(key, set()).add(request)

    @rule(key=KEYS, request=REQUESTS)
    def read(self, key: str, request: str) -> None:
        self.run_(self.store.touch(key, request))
        self.leases.get(key, set()).discard(request)

    @rule(key=KEYS, request=REQUESTS)
    def leave(self, key: str, request: str) -> None:
        self.run_(self.store.unlease(key, request))
        self.leases.get(key, set()).discard(request)

    @rule(key=KEYS)
    def lose(self, key: str) -> None:
        """The server evicts a value by itself."""
        self.run_(self.redis.delete(embedding_key(key)))
        self.leases.pop(key, None)

    @rule(index=st.sampled_from(["recency", "sizes"]))
    def lose_index(self, index: str) -> None:
        self.run_(self.store.account())
        self.run_(self.redis.delete(PREFIX + index))

    @rule()
    def flush(self) -> None:
        self.run_(self.redis.flushdb())
        self.leases.clear()

    @invariant()
    def leased_entries_are_there(self) -> None:
        if self.policy == "refcount":
            assert all(self.run_(self.redis.exists(embedding_key(key))) for key, who in self.leases.items() if who)

    @invariant()
    def bytes_are_under_the_budget(self) -> None:
        assert self._real() <= CAP

    def _real(self) -> int:
        keys = self.run_(self.redis.keys(f"{PREFIX}value:*"))
        return sum(self.run_(self.redis.strlen(key)) for key in keys)

    def teardown(self) -> None:
        """Once healed, the account is what is really there, and every key expires."""
        names = self.run_(self.redis.keys(f"{PREFIX}value:*"))
        for name in names:
            self.run_(self.store.touch(name.decode().rpartition(":")[2]))
        assert self.run_(self.store.account()).bytes == self._real()
        assert all(self.run_(self.redis.pttl(key)) > 0 for key in self.run_(self.redis.keys("*")))
        self.run_(self.redis.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with start_valkey() as url:
        yield url


@pytest.mark.parametrize("policy", ["lru", "refcount"])
def test_leases_budget_and_account_hold(url: str, policy: Policy) -> None:
    machine = type("Machine", (StoreMachine,), {"url": url, "policy": policy})
    checks = [HealthCheck.too_slow]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=checks)
    )
