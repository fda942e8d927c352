"""One cluster for all tests of this folder: the demo model as a monolith, which starts quickest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from triptych import Client
from triptych.cli.cluster import LocalCluster
from triptych.cli.plan import ClusterOptions, default_model

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


@pytest.fixture(scope="package")
def served() -> Iterator[LocalCluster]:
    with LocalCluster(ClusterOptions(default_model(), topology="monolith")) as cluster:
        yield cluster


@pytest.fixture
def client(served: LocalCluster) -> Iterator[Client]:
    with Client(served.grpc_address) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Headless Chromium; `.ci/run` installs it."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("the packages chromium and chromium-driver are not installed")
    with webdriver.Chrome(
        _options(chromium, tmp_path_factory.mktemp("profile")), webdriver.ChromeService(driver)
    ) as on:
        yield on


def _options(chromium: str, profile: Path) -> webdriver.ChromeOptions:
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "WARNING"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    return options
