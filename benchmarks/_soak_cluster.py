"""The cluster of the long soak: real workers of a tiny random model, killed one at a time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.checkpoints import build_checkpoint
from tests.fault.cluster import ROLES, Cluster, running_cluster
from tests.pictures import noise, save
from triptych import Image

QUESTIONS = 60
TOKENS = 12
VICTIMS = (*ROLES, "redis")


class ClusterTarget:
    """See `benchmarks.soak.Target`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ask(self, number: int) -> str:
        """Every third question has a picture, every second one is answered at random with a fixed seed."""
        prompt: list[str | Image] = [f"question {number} " * (1 + number % 7)]
        if number % 3 == 0:
            prompt.append(Image.from_bytes(save(noise(90, 60, seed=number), "PNG")))
        options = {"temperature": float(number % 2), "seed": number, "max_tokens": TOKENS, "ignore_eos": True}
        stream = self._cluster.clients[0].generate(prompt, **options)  # type: ignore[arg-type]  # all are options
        return " ".join(str(token.token_id) for token in (await stream.answer()).tokens)

    async def kill(self, rng: random.Random) -> None:
        """One worker or Redis, and its successor."""
        victim = rng.choice(VICTIMS)
        await self._cluster.kill(victim)
        await self._cluster.repair(victim)

    async def idle(self) -> None:
        """No block, reservation or booking is left."""
        await self._cluster.idle()


@asynccontextmanager
async def open_target(directory: Path) -> AsyncIterator[ClusterTarget]:
    """Build the model, start the cluster."""
    async with running_cluster(build_checkpoint("qwen2_vl", directory / "model")) as cluster:
        yield ClusterTarget(cluster)
