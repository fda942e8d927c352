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

from tests.valkey import start_valkey

if TYPE_CHECKING:
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every asyncio test is checked for leaked tasks, after all its other fixtures are gone.

    With several processes the tests of a file share one, and so do those of a folder that shares a cluster.
    """
    items.sort(key=lambda item: ORDER.index(_kind(item)) if _kind(item) in ORDER else len(ORDER))
    for item in items:
        item.add_marker(
            pytest.mark.xdist_group(item.path.parent.name if "served" in item.path.parts else item.path.stem)
        )
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
