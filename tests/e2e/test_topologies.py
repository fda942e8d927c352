"""E/PD and the monolith, started as a user starts them: the reference's tokens, and no KV on the wire."""

from __future__ import annotations

import pytest

from tests.checkpoints import CheckpointCache
from tests.e2e.test_tokens import TOKENS, ask, check
from tests.integration.chats import CHATS
from tests.reference import Reference
from triptych import Client
from triptych.cli.cluster import LocalCluster
from triptych.cli.plan import ClusterOptions, Topology

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("topology", "processes", "family"), [("e-pd", 4, "qwen3_vl"), ("monolith", 3, "gemma3")])
def test_same_answers_and_no_transfer(
    topology: Topology, processes: int, family: str, checkpoints: CheckpointCache
) -> None:
    model = checkpoints.get(family)
    options = ClusterOptions(model, topology=topology, extra={"worker": ["--step-tokens", "13", "--blocks", "256"]})
    reference = Reference(model)
    with LocalCluster(options) as cluster, Client(cluster.grpc_address) as client:
        assert len(cluster.children) == processes
        for chat in CHATS.values():
            expected = reference.generate(*chat, TOKENS, ignore_eos=True)
            cold, warm = ask(client, chat), ask(client, chat)
            check(expected, cold)
            check(expected, warm)
            assert cold.usage.kv_transfer_bytes == warm.usage.kv_transfer_bytes == 0
            assert warm.usage.embedding_misses == 0
