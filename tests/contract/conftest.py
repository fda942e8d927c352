"""Fixtures of the router's contract tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.router_bench import Bench, open_bench


@pytest.fixture
async def bench(valkey_url: str) -> AsyncIterator[Bench]:
    """A router with one worker of each role."""
    async with open_bench(valkey_url, ("encoder", "prefill", "decode")) as bench:
        yield bench


@pytest.fixture
async def wide(valkey_url: str) -> AsyncIterator[Bench]:
    """A router with two workers of each role."""
    async with open_bench(valkey_url, ("encoder", "prefill", "decode") * 2) as bench:
        yield bench
