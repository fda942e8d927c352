"""Whether the decode workers can hold one more request: by their KV blocks and batches, not by a constant."""

from __future__ import annotations

from services.router.placing.cluster import Cluster
from services.router.placing.filters import capacity
from services.router.placing.loads import Loads
from triptych.v1.worker_pb2 import WorkerRole

# Somewhat more than can run together, so that the next one is at hand when one ends.
AT_HAND = 1.25


class Capacity:
    """`overcommit` is how many times the KV pools may be promised: few answers become as long as they may."""

    def __init__(self, cluster: Cluster, loads: Loads, overcommit: float) -> None:
        self._cluster, self._loads, self._overcommit = cluster, loads, overcommit

    def fits(self, cost: int, taken: int, running: int) -> bool:
        """One more of `cost` tokens, when this router has promised `taken` tokens to `running` requests.

        Without any worker everything fits: placement says better what is wrong.
        """
        workers = self._cluster.ready(WorkerRole.WORKER_ROLE_DECODE)
        if running == 0 or not workers:
            return True
        held = sum(self._loads.blocks_held(info) * info.layout.block_size for info in workers)
        room = sum(capacity(info) for info in workers)
        if taken + cost > room * self._overcommit or held >= room:
            return False
        if any(info.max_sequences == 0 for info in workers):
            return True
        busy = max(running, sum(self._loads.running(info) for info in workers))
        return busy < sum(info.max_sequences for info in workers) * AT_HAND
