"""What holds for every test: one thread a process, nothing from a hub, and nothing left behind."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before torch is loaded anywhere: two spinning thread pools on the same cores are thirty times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import psutil
import pytest
from hypothesis import settings
from redis.asyncio import Redis
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from common.store.client import connect
from tests.valkey import start_valkey

if TYPE_CHECKING:
    from common.models.tower import Tower
    from tests.checkpoints import CheckpointCache

# A change must not fail in CI by the luck of the draw; at home every run looks elsewhere.
# Neither may it fail because the machine is busy: no deadlines anywhere.
settings.register_profile("home", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "home")

# Python's own helper of multiprocessing lives until the interpreter ends.
LASTING = "multiprocessing.resource_tracker"


# What takes longest begins first, so that no process is left with it at the end.
ORDER = ("e2e", "fault", "integration", "contract", "deploy", "unit")
# Tests below these share a process: the first a cluster, the second the cores, which are too few for two Rays at once.
TOGETHER = ("tests/e2e/served/", "tests/e2e/")


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Tests of a file share a process, so that what they share is started once, and so do those of some folders."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """In the order of collection: by itself xdist begins with the largest number of tests."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every asyncio test is checked for leaked tasks, after all its other fixtures are gone."""
    items.sort(key=lambda item: ORDER.index(_kind(item)) if _kind(item) in ORDER else len(ORDER))
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "no_tasks_left")


def _kind(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture
async def no_tasks_left() -> AsyncIterator[None]:
    """Fails a test whose tasks outlive it. What was cancelled gets a moment to end."""
    before = asyncio.all_tasks()
    yield
    for _ in range(200):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"tasks left running: {left}")


@pytest.fixture(scope="session", autouse=True)
def no_processes_left() -> Iterator[None]:
    """Fails the run when a child process outlives it."""
    yield
    children = psutil.Process().children(recursive=True)
    left = [process for process in children if LASTING not in " ".join(process.cmdline())]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert alive == [], [process.cmdline() for process in alive]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> CheckpointCache:
    """Tiny random checkpoints of every family, each built once a session."""
    from tests.checkpoints import session_checkpoints  # loads torch, which most unit tests do without

    return session_checkpoints(tmp_path_factory)


@pytest.fixture(scope="module")
def valkey_url() -> Iterator[str]:
    """URL of a real server that the module's tests share."""
    with start_valkey() as url:
        yield url


@pytest.fixture
async def redis(valkey_url: str) -> AsyncIterator[Redis]:
    """A client of that server, as those before have left it."""
    client = connect(valkey_url)
    yield client
    await client.aclose()


@pytest.fixture(scope="module")
def checkpoint(checkpoints: CheckpointCache) -> Path:
    """One with a tower."""
    return checkpoints.get("qwen2_vl")


@pytest.fixture(scope="module")
def tower(checkpoint: Path) -> Tower:
    """Its tower, to compare with what an encoder gives."""
    import torch

    from common.models.tower import Tower

    return Tower.load(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
