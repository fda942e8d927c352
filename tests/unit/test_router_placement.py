"""Which workers a request gets."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from services.router.placing.cacheview import CacheView
from services.router.placing.cluster import Cluster
from services.router.placing.filters import Avoid, Holds, Uncrowded
from services.router.placing.ledger import Ledger
from services.router.placing.loads import Loads
from services.router.placing.placement import MAX_PEERS, Pick, Placement, equal_encoders
from services.router.placing.scores import (
    CachedPrefix,
    FewestRunning,
    FreeBlocks,
    LeastPending,
    Room,
    Score,
    SoonestComputed,
    Work,
)
from triptych.errors import ContextLengthError, FailedPreconditionError, UnavailableError
from triptych.v1.types_pb2 import KvLayout
from triptych.v1.worker_pb2 import GetLoadResponse, WatchCacheResponse, WorkerInfo, WorkerRole

ENCODER, PREFILL, DECODE = (
    WorkerRole.WORKER_ROLE_ENCODER,
    WorkerRole.WORKER_ROLE_PREFILL,
    WorkerRole.WORKER_ROLE_DECODE,
)
HASHES = tuple(bytes([at]) * 32 for at in range(8))


def worker(name: str, role: WorkerRole.ValueType, *, block_size: int = 16, **fields: object) -> WorkerInfo:
    info = WorkerInfo(
        instance_id=name,
        address=name,
        role=role,
        model="m",
        model_fingerprint="f",
        preprocessing_fingerprint="p",
        num_blocks=100,
        layout=KvLayout(block_size=block_size),
    )
    for field, value in fields.items():
        setattr(info, field, value)
    return info


class Bench:
    """Workers, what they announced, and what was booked on them."""

    def __init__(self, *workers: WorkerInfo) -> None:
        self.ledger, self.view = Ledger(), CacheView(1000)
        self.loads = Loads(self.ledger, self.view)
        self.lost: set[str] = set()
        self.cluster = Cluster(lambda: workers, "m", "c", "p", lambda info: info.instance_id in self.lost)
        self.placement = Placement(self.cluster, self.loads, random.Random(0))

    def says(self, address: str, cached: int = 0, **load: int) -> None:
        """The worker announces the first blocks of the prompt, and its load."""
        added, said = HASHES[:cached], GetLoadResponse(**load)
        self.view.apply(address, WatchCacheResponse(sequence=1, snapshot=True, added=added, load=said))

    def work(self, prompt: int = 130, most: int = 160) -> Work:
        return Work(prompt, most, lambda info: HASHES)


PAIRS = [worker("p1", PREFILL), worker("p2", PREFILL), worker("d1", DECODE), worker("d2", DECODE)]


def test_the_least_loaded_pair_is_chosen() -> None:
    bench = Bench(*PAIRS)
    bench.ledger.book("p1", 5)
    bench.ledger.book("d2", 5)
    route = bench.placement.route(bench.work())
    assert (route.prefill.instance_id, route.decode.instance_id) == ("p2", "d1")


def test_the_longest_cached_prefix_is_chosen() -> None:
    bench = Bench(*PAIRS)
    bench.says("p1", cached=3)
    bench.says("p2", cached=2)
    bench.says("d2", cached=1)
    route = bench.placement.route(bench.work())
    assert (route.prefill.instance_id, route.decode.instance_id) == ("p1", "d2")
    assert route.uncached_tokens == 130 - 3 * 16


def test_a_queue_longer_than_the_prefix_saves_is_avoided() -> None:
    bench = Bench(*PAIRS)
    bench.says("p1", cached=3, pending_tokens=3 * 16 + 1)
    assert bench.placement.route(bench.work()).prefill.instance_id == "p2"


def test_a_full_decode_worker_is_avoided_whatever_it_has_cached() -> None:
    bench = Bench(*PAIRS)
    bench.says("d1", cached=8, blocks_in_use=95)
    assert bench.placement.route(bench.work()).decode.instance_id == "d2"


def test_ties_are_broken_evenly() -> None:
    pick, workers = Pick(random.Random(1)), [worker("a", DECODE), worker("b", DECODE)]
    counts = Counter(pick(workers, FreeBlocks(Bench().loads)).instance_id for _ in range(200))
    assert min(counts["a"], counts["b"]) > 70


@pytest.mark.parametrize("field", ["model_fingerprint", "layout"])
def test_a_pair_fits_together(field: str) -> None:
    odd = worker("p1", PREFILL, block_size=32) if field == "layout" else worker("p1", PREFILL, model_fingerprint="g")
    with pytest.raises(FailedPreconditionError):
        Bench(odd, worker("d1", DECODE)).placement.route(Work(1, 1, lambda info: ()))
    bench = Bench(odd, worker("p2", PREFILL), worker("d1", DECODE))
    assert bench.placement.route(bench.work()).prefill.instance_id == "p2"


@pytest.mark.parametrize("role", [PREFILL, DECODE])
def test_a_missing_role_is_named(role: WorkerRole.ValueType) -> None:
    other = {PREFILL: DECODE, DECODE: PREFILL}[role]
    bench = Bench(worker("x", other))
    with pytest.raises(UnavailableError, match={PREFILL: "no prefill", DECODE: "no decode"}[role]) as caught:
        bench.placement.route(bench.work())
    assert caught.value.retry_after_s


@pytest.mark.parametrize(
    "decode", [worker("d", DECODE, draining=True), worker("d", DECODE, model="other"), worker("lost", DECODE)]
)
def test_workers_that_do_not_count(decode: WorkerInfo) -> None:
    bench = Bench(worker("p", PREFILL), decode)
    bench.lost.add("lost")
    with pytest.raises(UnavailableError):
        bench.placement.route(bench.work())


def test_encoders_with_another_preprocessing_do_not_count() -> None:
    with pytest.raises(UnavailableError, match="no encoder"):
        Bench(worker("e", ENCODER, preprocessing_fingerprint="q")).placement.encoders()


def test_encoders_of_one_request_give_equal_embeddings() -> None:
    encoders = [worker(name, ENCODER) for name in ("a", "b")] + [worker("c", ENCODER, dtype="bfloat16")]
    chosen = Bench(*encoders).placement.encoders()
    assert all(equal_encoders(info, chosen[0]) for info in chosen)
    assert len(chosen) in (1, 2)


def test_an_encoder_that_was_replaced_by_its_equal_is_not_missed() -> None:
    gone, heir, other = worker("a", ENCODER), worker("b", ENCODER), worker("c", ENCODER, dtype="bfloat16")
    placement = Bench(heir, other).placement
    assert [info.instance_id for info in placement.equal_encoders([gone])] == ["b"]


def test_small_pools_are_left_out() -> None:
    workers = [worker("small", DECODE, num_blocks=1), worker("large", DECODE, num_blocks=2)]
    assert [info.instance_id for info in Holds(17)(workers)] == ["large"]
    with pytest.raises(ContextLengthError, match=r"33.*32"):
        Holds(33)(workers)


def test_workers_that_failed_are_avoided_while_there_are_others() -> None:
    workers = [worker("a", DECODE), worker("b", DECODE)]
    assert [info.instance_id for info in Avoid({"a"})(workers)] == ["b"]
    assert Avoid({"a", "b"})(workers) == workers


def test_a_shared_prefix_does_not_draw_everybody_to_one_worker() -> None:
    bench = Bench(*PAIRS)
    bench.says("d1", cached=8, running_requests=9)
    assert [info.instance_id for info in Uncrowded(bench.loads)(PAIRS[2:])] == ["d2"]


def test_a_process_that_serves_both_stages_keeps_the_request() -> None:
    both = [(worker(f"p{at}", PREFILL, address=at), worker(f"d{at}", DECODE, address=at)) for at in ("x", "y", "z")]
    bench = Bench(*(info for pair in both for info in pair))
    routes = [bench.placement.route(bench.work()) for _ in range(10)]
    assert all(route.prefill.address == route.decode.address for route in routes)


def test_peers_are_those_with_a_longer_prefix_the_longest_first() -> None:
    bench = Bench(*PAIRS, worker("p3", PREFILL), worker("odd", PREFILL, block_size=32))
    for name, cached, pending in (("p1", 2, 0), ("p2", 4, 999), ("p3", 5, 999), ("d1", 3, 0), ("odd", 8, 999)):
        bench.says(name, cached=cached, pending_tokens=pending, blocks_in_use=0)
    route = bench.placement.route(bench.work())
    assert (route.prefill.instance_id, route.peers) == ("p1", ("p3", "p2"))


def test_without_a_longer_prefix_there_are_no_peers_and_never_too_many() -> None:
    bench = Bench(*PAIRS)
    assert bench.placement.route(bench.work()).peers == ()
    many = [worker(f"q{at}", PREFILL) for at in range(MAX_PEERS + 2)]
    bench = Bench(*PAIRS, *many)
    for info in many:
        bench.says(info.address, cached=1, pending_tokens=1000)
    assert len(bench.placement.route(bench.work()).peers) == MAX_PEERS


def test_scores_lie_between_zero_and_one() -> None:
    bench = Bench(*PAIRS)
    bench.ledger.book("p1", 40)
    bench.says("p2", cached=4, running_requests=7, blocks_in_use=120, pending_tokens=9)
    loads, work = bench.loads, bench.work()
    scores: list[Score] = [SoonestComputed(loads, work), CachedPrefix(loads, work), Room(loads, work)]
    scores += [LeastPending(loads), FreeBlocks(loads), FewestRunning(loads)]
    values = [value for score in scores for value in score(PAIRS)]
    assert all(0 <= value <= 1 for value in values)
    assert len(set(values)) > 4


def test_a_booking_is_released_once() -> None:
    ledger = Ledger()
    bookings = [ledger.book("a", 3), ledger.book("a", 4)]
    bookings[0].release()
    bookings[0].release()
    ledger.validate()
    assert (ledger.load("a"), ledger.count("a"), ledger.total) == (4, 1, 1)


def test_what_a_router_just_sent_counts_before_the_worker_says_so() -> None:
    bench = Bench(*PAIRS)
    bench.says("d1", blocks_in_use=2, running_requests=1)
    bench.ledger.book("d1", 160)
    assert (bench.loads.blocks_free(PAIRS[2]), bench.loads.running(PAIRS[2])) == (90, 1)


def test_what_is_missing_is_said() -> None:
    workers = [worker("p", PREFILL), worker("d", DECODE, block_size=8), worker("e", ENCODER)]
    assert Cluster(lambda: workers, "m", "c", "p").missing() == ["no prefill worker fits a decode worker"]
    assert len(Cluster(list, "m", "c", "p").missing()) == 3


def test_workers_of_other_models_are_told_and_not_used() -> None:
    stranger = worker("s", DECODE, model="other")
    cluster = Cluster(lambda: [stranger], "m", "c", "p")
    assert cluster.others() == [stranger] and cluster.known() == cluster.ready(DECODE) == []


def test_workers_of_another_checkpoint_under_the_same_name_get_nothing() -> None:
    for role in (ENCODER, PREFILL, DECODE):
        infos = [worker(config, role, config_fingerprint=config) for config in ("c", "other", "")]
        cluster = Cluster(lambda infos=infos: infos, "m", "c", "p")  # type: ignore[misc]
        assert cluster.ready(role) == [infos[0], infos[2]] and cluster.known() == infos
