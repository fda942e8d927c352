"""Every nasty file, uploaded to a real router process: a record or a typed refusal, soon, and nothing stays behind."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.nasty_files import nasty_files
from tests.pictures import noise, save
from tests.router_process import router_process
from triptych import Client, Image
from triptych.errors import InvalidImageError

# A file takes far less than 2 s on a core of its own; other work may share it here.
PATIENCE_S = 8.0
GROWTH_BYTES = 150 * 2**20


@dataclass
class Router:
    """A router process, with a `gs` on its path that leaves a trace when it is run."""

    client: Client
    process: psutil.Process
    trace: Path

    def peak_bytes(self) -> int:
        """The most memory that was ever resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def put(self, data: bytes) -> bool:
        """Whether the file is accepted; anything but a typed refusal passes."""
        try:
            self.client.put_image(Image.from_bytes(data))
        except InvalidImageError:
            return False
        return True


@pytest.fixture(scope="module")
def router(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    folder = tmp_path_factory.mktemp("path")
    (folder / "gs").write_text(f"#!/bin/sh\ntouch {folder}/ran\n", encoding="utf-8")
    (folder / "gs").chmod(stat.S_IRWXU)
    environment = {"PATH": f"{folder}", "OMP_NUM_THREADS": "1"}
    with router_process(valkey_url, folder, environment=environment) as running, Client(running.address) as client:
        client.put_image(Image.from_bytes(save(noise(64, 48, 99), "PNG")))
        yield Router(client, psutil.Process(running.process.pid), folder / "ran")


def test_each_ends_soon_and_the_next_picture_is_taken(router: Router) -> None:
    files, wrong = nasty_files(), []
    assert len(files) >= 60
    base = router.peak_bytes()
    for number, (name, (data, accepted)) in enumerate(files.items()):
        began = time.monotonic()
        if router.put(data) is not accepted:
            wrong.append(name)
        assert time.monotonic() - began < PATIENCE_S, name
        assert router.put(save(noise(32, 32, number), "PNG")), f"after {name}"
    assert wrong == []
    assert router.peak_bytes() - base < GROWTH_BYTES
    assert not router.trace.exists(), "Postscript was run"
