"""When a request is tried again, and when not."""

from __future__ import annotations

from typing import NoReturn

import grpc
import pytest
from grpc.aio import Metadata

from services.router.job import Job
from services.router.running.budget import MOST, RetryBudget
from services.router.running.calls import Trouble
from services.router.running.failover import Failover, Failure, can_move
from services.router.running.quarantine import Quarantine
from triptych.errors import (
    ContextLengthError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    QuarantinedError,
    ResourceExhaustedError,
    TriptychError,
    UnavailableError,
    WrongInstanceError,
)
from triptych.status import to_metadata
from triptych.v1.types_pb2 import ImageSpan, KvLayout, Prompt, SamplingParams
from triptych.v1.worker_pb2 import WorkerInfo

GONE = Failure(UnavailableError("at 10.0.0.7:99"), "prefill", frozenset({"p1"}))


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job(*ids: int, key: str = "a", **fields: object) -> Job:
    prompt = Prompt(token_ids=ids or (1, 2), images=[ImageSpan(length=1, embedding_key=key * 64)], **fields)  # type: ignore[arg-type]
    return Job("r", prompt, SamplingParams(max_tokens=5), (), (), 0.0, {})


class Rules:
    """Failover with room for `budget` repetitions, and what it counted."""

    def __init__(self, budget: float = 10.0, attempts: int = 3) -> None:
        self.clock, self.counted = Clock(), list[str]()
        self.quarantine = Quarantine(60.0, self.clock)
        note = self.counted.append
        self.failover = Failover(RetryBudget(self.clock, budget), self.quarantine, attempts, note, note)


def test_a_lost_worker_is_no_reason_to_give_up() -> None:
    rules = Rules()
    rules.failover.judge(job(), GONE, attempts=1)
    assert rules.counted == ["lost"]


def test_attempts_are_bounded_and_addresses_stay_inside() -> None:
    rules = Rules()
    with pytest.raises(UnavailableError, match="prefill") as caught:
        rules.failover.judge(job(), Failure(UnavailableError("10.0.0.7:99"), "prefill", frozenset()), attempts=3)
    assert (rules.counted, caught.value.retry_after_s) == (["attempts"], 1.0)
    assert "10.0.0.7" not in caught.value.message


def test_all_requests_together_have_a_budget() -> None:
    rules = Rules(budget=1.0)
    rules.failover.judge(job(1), GONE, attempts=1)
    with pytest.raises(UnavailableError):
        rules.failover.judge(job(2), GONE, attempts=1)
    assert rules.counted == ["lost", "budget"]


def test_the_budget_grows_with_requests_and_with_time() -> None:
    clock = Clock()
    budget = RetryBudget(clock, start=0.0)
    assert not budget.take()
    for _ in range(5):
        budget.deposit()
    assert (budget.take(), budget.take()) == (True, False)
    clock.now += 1
    assert budget.take()
    clock.now += 10 * MOST
    assert sum(budget.take() for _ in range(1000)) == MOST


def test_a_request_that_took_two_workers_down_is_not_tried_again_for_a_while() -> None:
    rules = Rules()
    rules.failover.judge(job(), GONE, attempts=1)
    rules.failover.begin(job())
    with pytest.raises(QuarantinedError) as caught:
        rules.failover.judge(job(), Failure(GONE.error, "decode", frozenset({"d1"})), attempts=2)
    assert caught.value.retry_after_s == 60.0
    with pytest.raises(QuarantinedError):
        rules.failover.begin(job())
    rules.failover.begin(job(7))
    rules.clock.now += 60
    rules.failover.begin(job())


def test_the_same_worker_lost_twice_is_one() -> None:
    rules = Rules()
    for _ in range(3):
        rules.failover.judge(job(), GONE, attempts=1)
    rules.failover.begin(job())


def test_an_answer_proves_a_request_harmless() -> None:
    rules = Rules()
    for worker in ("p1", "p2", "p3"):
        rules.failover.judge(job(), Failure(GONE.error, "prefill", frozenset({worker})), attempts=1)
        rules.failover.finished(job())
    rules.failover.begin(job())


def test_quarantine_is_bounded() -> None:
    quarantine = Quarantine(60.0, Clock())
    for at in range(2000):
        quarantine.strike(at.to_bytes(2, "big"), {"a", "b"})
    quarantine.check((0).to_bytes(2, "big"))
    with pytest.raises(QuarantinedError):
        quarantine.check((1999).to_bytes(2, "big"))


@pytest.mark.parametrize(
    ("error", "moves"),
    [
        (UnavailableError(""), True),
        (WrongInstanceError(""), True),
        (FailedPreconditionError("an old ticket"), True),
        (QuarantinedError(""), False),
        (ResourceExhaustedError(""), False),
        (ContextLengthError(""), False),
        (InternalError(""), False),
        (DeadlineExceededError(""), False),
    ],
)
def test_what_another_worker_could_do(error: TriptychError, moves: bool) -> None:
    assert can_move(error) is moves


def test_content_is_what_is_asked_not_who_asks() -> None:
    assert job(1, 2).content == job(1, 2).content
    assert len({job(1, 2).content, job(1, 3).content, job(1, 2, key="b").content}) == 3
    assert job(1, 2).content != job(1, 2, cache_scope="x").content


def test_the_rest_of_a_job_keeps_its_bounds() -> None:
    rest = job(1, 2, 3).resumed([4, 5], 1)
    assert (list(rest.prompt.token_ids), rest.prompt.generated) == ([1, 2, 3, 4, 5], 2)
    assert (rest.prompt_tokens, rest.most_tokens) == (5, 8)
    assert job().resumed([], 1).prompt.generated == 0


def test_each_attempt_has_a_name_and_only_a_longer_prompt_has_new_hashes() -> None:
    one, info = job(*range(9), cache_scope="5" * 64), WorkerInfo(layout=KvLayout(block_size=4))
    again = one.resumed([], 1)
    assert [one.resumed([], 0).request_id, again.request_id, one.resumed([1], 2).request_id] == ["r", "r.1", "r.2"]
    assert again.hashes(info) is one.hashes(info) is not one.resumed([1], 1).hashes(info)


def test_records_are_forgotten_when_their_time_is_over() -> None:
    clock = Clock()
    quarantine = Quarantine(60.0, clock)
    quarantine.strike(b"old", {"a"})
    clock.now += 30
    quarantine.strike(b"new", {"a"})
    clock.now += 30
    assert len(quarantine) == 1
    quarantine.strike(b"old", {"b"})
    quarantine.check(b"old")


def test_hashes_are_computed_once_for_each_layout() -> None:
    one = job(*range(9), cache_scope="5" * 64)
    small, large = (WorkerInfo(model_fingerprint="f", layout=KvLayout(block_size=size)) for size in (2, 4))
    assert (len(one.hashes(small)), len(one.hashes(large))) == (4, 2)
    assert one.hashes(small) is one.hashes(small)
    assert one.hashes(small)[1] != one.hashes(large)[0]


def fail(code: grpc.StatusCode, details: str, *metadata: tuple[str, bytes]) -> NoReturn:
    raise grpc.aio.AioRpcError(code, Metadata(), Metadata(*metadata), details)


WORKER = WorkerInfo(instance_id="w")
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("details", "lost"), [("Socket closed", {"w"}), ("failed to connect to all addresses; ipv4:10.0.0.7:99", set())]
)
def test_only_a_connection_that_broke_speaks_against_the_request(details: str, lost: set[str]) -> None:
    trouble = Trouble()
    with pytest.raises(UnavailableError) as caught, trouble.watching("decode", WORKER):
        fail(UNAVAILABLE, details)
    assert (trouble.lost, trouble.suspects, trouble.stage) == (lost, {"w"}, "decode")
    assert "10.0.0.7" not in caught.value.message


def test_a_worker_that_ends_its_calls_as_it_stops_is_left_for_another_one() -> None:
    trouble = Trouble()
    with pytest.raises(UnavailableError, match="prefill worker has cancelled"), trouble.watching("prefill", WORKER):
        fail(grpc.StatusCode.CANCELLED, "CANCELLED")
    assert trouble.suspects == {"w"}


def test_what_a_worker_says_itself_is_no_loss() -> None:
    trouble = Trouble()
    with pytest.raises(UnavailableError, match="draining"), trouble.watching("encode", WORKER):
        fail(UNAVAILABLE, "draining", *to_metadata(UnavailableError("draining")))
    assert trouble.lost == set()


def test_the_answers_of_one_request_pay_into_the_budget_once() -> None:
    rules = Rules(budget=0.0)
    for index in range(16):
        one = job()
        one.sampling.choice_index = index
        rules.failover.begin(one)
    with pytest.raises(UnavailableError):
        rules.failover.judge(job(), GONE, 1)
    assert rules.counted == ["budget"]
