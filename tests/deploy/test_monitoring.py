"""Rules, alerts and dashboards, with the tools of Prometheus and with a real one that scrapes a real router."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from helm.panels import ROWS
from tests.contract.router_bench import Bench, open_bench
from tests.said import said

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm" / "triptych" / "files" / "rules.yml"
GROUPS: list[Any] = yaml.safe_load(RULES.read_text())["groups"]
ALL_RULES = [rule for group in GROUPS for rule in group["rules"]]
QUERIES = [query for _, row in ROWS for _, _, queries in row for query, _ in queries]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
WAIT_S = 60.0


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install prometheus)")
    return found


@pytest.mark.parametrize("arguments", [("check", "rules", str(RULES)), ("test", "rules", "rules_test.yml")])
def test_promtool_accepts_the_rules(arguments: tuple[str, ...]) -> None:
    command = [tool("promtool"), *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_and_advice() -> None:
    alerts = {rule["alert"] for rule in ALL_RULES if "alert" in rule}
    tested = set(re.findall(r"alertname: (\w+)", (Path(__file__).parent / "rules_test.yml").read_text()))
    advised = set(re.findall(r"^\| `(Triptych\w+)` \|", OPERATIONS, re.MULTILINE))
    assert alerts == tested == advised


def test_queries_name_metrics_that_exist() -> None:
    """Those documented are those shown: another test sees to it."""
    recorded = {rule["record"] for rule in ALL_RULES if "record" in rule}
    names = {name for text in (*QUERIES, *(rule["expr"] for rule in ALL_RULES)) for name in _names(text)}
    documented = {f"triptych_{name}" for name in re.findall(r"`([a-z_]+)(?:\{[a-z_, ]+\})?`", OPERATIONS)}
    assert names - recorded - documented == set()


def _names(query: str) -> set[str]:
    return {re.sub(r"_bucket$", "", name) for name in re.findall(r"\btriptych[:_][a-z0-9_:]+", query)}


class Prometheus:
    """Its HTTP interface."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def query(self, expression: str) -> list[Any]:
        """The samples now; the query must be valid."""
        answer = (await self._http.get("/api/v1/query", params={"query": expression})).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        found: list[Any] = answer["data"]["result"]
        return found

    async def until(self, expression: str, holds: Callable[[list[Any]], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds(await self.query(expression)):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.1)


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """One that scrapes `target` and evaluates our rules several times a second."""
    rules = yaml.safe_load(RULES.read_text())
    (folder / "rules.yml").write_text(json.dumps(rules))
    scrape = {"job_name": "router", "static_configs": [{"targets": [target]}]}
    interval = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"}
    config = {"global": interval, "rule_files": ["rules.yml"], "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    flags = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    flags += ["--web.listen-address=127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(tool("prometheus"), *flags, stderr=asyncio.subprocess.PIPE)
    try:
        address = await said(process, r'"Listening on" address=(\S+)')
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as http:
            await _ready(http)
            yield Prometheus(http)
    finally:
        process.kill()
        await process.wait()


async def _ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                if (await http.get("/-/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.05)


@pytest.fixture
async def bench(valkey_url: str) -> AsyncIterator[Bench]:
    async with open_bench(valkey_url, ("encoder", "prefill", "decode")) as bench:
        yield bench


async def test_every_query_runs_against_a_router_that_is_scraped(bench: Bench, tmp_path: Path) -> None:
    tool("prometheus")
    bench.say("Fine.")
    async with prometheus(tmp_path, f"127.0.0.1:{bench.router.http_port}") as prom:
        # A counter has no rate before its second value was scraped.
        for answers in (1, 2):
            await bench.chat()
            await prom.until(f"sum(triptych_router_prompts_total) == {answers}", bool)
        await prom.until("triptych:kv_read_ratio:5m", _is_number)
        for query in (*QUERIES, *(rule["expr"] for rule in ALL_RULES)):
            await prom.query(query)
        for query in ("triptych:inter_token_seconds:p50", "triptych:request_stage_seconds:p99"):
            await prom.until(query, bool)
        assert await prom.query("triptych_build_info") and await prom.query("triptych:kv_read_ratio_by_kind:5m")


def _is_number(samples: list[Any]) -> bool:
    return bool(samples) and samples[0]["value"][1] != "NaN"
