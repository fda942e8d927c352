"""Which workers a request gets."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from services.router.cluster import Cluster
from services.router.ledger import Ledger
from services.router.placement import Avoid, Holds, LeastLoaded, Pick, Placement, equal_encoders
from triptych.errors import ContextLengthError, FailedPreconditionError, UnavailableError
from triptych.v1.types_pb2 import KvLayout
from triptych.v1.worker_pb2 import WorkerInfo, WorkerRole

ENCODER, PREFILL, DECODE = (
    WorkerRole.WORKER_ROLE_ENCODER,
    WorkerRole.WORKER_ROLE_PREFILL,
    WorkerRole.WORKER_ROLE_DECODE,
)


def worker(name: str, role: WorkerRole.ValueType, *, block_size: int = 16, **fields: object) -> WorkerInfo:
    info = WorkerInfo(
        instance_id=name,
        role=role,
        model="m",
        model_fingerprint="f",
        preprocessing_fingerprint="p",
        num_blocks=10,
        layout=KvLayout(block_size=block_size),
    )
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def placement(*workers: WorkerInfo, ledger: Ledger | None = None) -> Placement:
    return Placement(Cluster(lambda: workers, "m", "p"), ledger or Ledger(), random.Random(0))


def test_the_least_loaded_pair_is_chosen() -> None:
    ledger = Ledger()
    ledger.book("p1", 5)
    ledger.book("d2", 5)
    pair = [worker("p1", PREFILL), worker("p2", PREFILL), worker("d1", DECODE), worker("d2", DECODE)]
    route = placement(*pair, ledger=ledger).route(1, 1)
    assert (route.prefill.instance_id, route.decode.instance_id) == ("p2", "d1")


def test_ties_are_broken_evenly() -> None:
    pick, workers = Pick(random.Random(1)), [worker("a", DECODE), worker("b", DECODE)]
    counts = Counter(pick(workers, [1.0, 1.0]).instance_id for _ in range(200))
    assert min(counts["a"], counts["b"]) > 70


@pytest.mark.parametrize("field", ["model_fingerprint", "layout"])
def test_a_pair_fits_together(field: str) -> None:
    odd = worker("p1", PREFILL, block_size=32) if field == "layout" else worker("p1", PREFILL, model_fingerprint="g")
    with pytest.raises(FailedPreconditionError):
        placement(odd, worker("d1", DECODE)).route(1, 1)
    assert placement(odd, worker("p2", PREFILL), worker("d1", DECODE)).route(1, 1).prefill.instance_id == "p2"


@pytest.mark.parametrize("role", [PREFILL, DECODE])
def test_a_missing_role_is_named(role: WorkerRole.ValueType) -> None:
    other = {PREFILL: DECODE, DECODE: PREFILL}[role]
    with pytest.raises(UnavailableError, match={PREFILL: "no prefill", DECODE: "no decode"}[role]):
        placement(worker("x", other)).route(1, 1)


@pytest.mark.parametrize("decode", [worker("d", DECODE, draining=True), worker("d", DECODE, model="other")])
def test_workers_that_do_not_count(decode: WorkerInfo) -> None:
    with pytest.raises(UnavailableError):
        placement(worker("p", PREFILL), decode).route(1, 1)


def test_encoders_with_another_preprocessing_do_not_count() -> None:
    with pytest.raises(UnavailableError, match="no encoder"):
        placement(worker("e", ENCODER, preprocessing_fingerprint="q")).encoders()


def test_encoders_of_one_request_give_equal_embeddings() -> None:
    encoders = [worker(name, ENCODER) for name in ("a", "b")] + [worker("c", ENCODER, dtype="bfloat16")]
    chosen = placement(*encoders).encoders()
    assert all(equal_encoders(info, chosen[0]) for info in chosen)
    assert len(chosen) in (1, 2)


def test_small_pools_are_left_out() -> None:
    workers = [worker("small", DECODE, num_blocks=1), worker("large", DECODE, num_blocks=2)]
    assert [info.instance_id for info in Holds(17)(workers)] == ["large"]
    with pytest.raises(ContextLengthError, match=r"33.*32"):
        Holds(33)(workers)


def test_workers_that_failed_are_avoided_while_there_are_others() -> None:
    workers = [worker("a", DECODE), worker("b", DECODE)]
    assert [info.instance_id for info in Avoid({"a"})(workers)] == ["b"]
    assert Avoid({"a", "b"})(workers) == workers


def test_a_process_that_serves_both_stages_keeps_the_request() -> None:
    both = [(worker(f"p{at}", PREFILL, address=at), worker(f"d{at}", DECODE, address=at)) for at in ("x", "y", "z")]
    place = placement(*(info for pair in both for info in pair))
    routes = [place.route(1, 1) for _ in range(10)]
    assert all(route.prefill.address == route.decode.address for route in routes)


def test_other_workers_that_fit_are_peers() -> None:
    pair = [worker("p", PREFILL, address="p"), worker("d", DECODE, address="d")]
    others = [worker("q", PREFILL, address="q"), worker("r", DECODE, address="r", num_blocks=0)]
    odd = worker("s", PREFILL, address="s", block_size=32)
    ledger = Ledger()
    ledger.book("q", 1)
    assert placement(*pair, *others, odd, ledger=ledger).route(1, 1).peers == ("q", "r")


def test_scores_lie_between_zero_and_one() -> None:
    ledger = Ledger()
    ledger.book("a", 4)
    ledger.book("b", 1)
    assert LeastLoaded(ledger)([worker(name, DECODE) for name in "abc"]) == [0.0, 0.75, 1.0]
    assert LeastLoaded(Ledger())([worker("a", DECODE)]) == [1.0]


def test_a_booking_is_released_once() -> None:
    ledger = Ledger()
    bookings = [ledger.book("a", 3), ledger.book("a", 4)]
    bookings[0].release()
    bookings[0].release()
    ledger.validate()
    assert (ledger.load("a"), ledger.total) == (4, 4)


def test_what_is_missing_is_said() -> None:
    workers = [worker("p", PREFILL), worker("d", DECODE, block_size=8), worker("e", ENCODER)]
    assert Cluster(lambda: workers, "m", "p").missing() == ["no prefill worker fits a decode worker"]
    assert len(Cluster(list, "m", "p").missing()) == 3
