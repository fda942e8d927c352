"""How `triptych doctor` gets its facts: handshakes, pages and a real Valkey."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from tests.certificates import HOST, Identity, issue
from tests.unit.sdk_router import FakeRouter, serve_router
from triptych.cli.app import app
from triptych.doctor import Site, examine
from triptych.doctor.certificate import shake_hands
from triptych.doctor.pages import read_ready
from triptych.errors import ConfigError, UnauthenticatedError
from triptych.tls import Tls
from triptych.v1 import router_pb2 as pb

runner = CliRunner()


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return issue(tmp_path / "ours")


@pytest.fixture
def guarded(identity: Identity) -> Iterator[str]:
    """A gRPC server that asks for certificates of the same authority."""
    pair = [(identity.key.read_bytes(), identity.cert.read_bytes())]
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        credentials = grpc.ssl_server_credentials(pair, identity.ca.read_bytes(), require_client_auth=True)
        port = server.add_secure_port(f"{HOST}:0", credentials)
        server.start()
        yield f"{HOST}:{port}"
        server.stop(0).wait()


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield f"{HOST}:{taken.getsockname()[1]}"


def test_a_handshake_tells_names_and_end(guarded: str, identity: Identity) -> None:
    shaken = shake_hands(guarded, identity.client)
    assert (shaken.problem, shaken.names) == ("", (HOST,)) and shaken.ends_unix_s > 0


def test_a_server_that_misses_our_certificate_is_heard(guarded: str, identity: Identity) -> None:
    assert "wants a certificate of ours" in shake_hands(guarded, Tls(identity.ca)).problem


def test_a_certificate_of_strangers_is_no_good(guarded: str, tmp_path: Path) -> None:
    assert "issuer certificate" in shake_hands(guarded, issue(tmp_path / "theirs").client).problem


def test_a_port_in_plain_text_is_told(identity: Identity) -> None:
    with serve_router(FakeRouter()) as address:
        assert shake_hands(address, identity.client).problem == "WRONG_VERSION_NUMBER"


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        shake_hands(f"{HOST}:1", Tls(tmp_path / "missing"))


@pytest.mark.parametrize("form", ["{}", "http://{}/v1", "https://{}"])
def test_a_port_without_http_is_told(silent: str, form: str) -> None:
    assert "refused" in str(read_ready(form.format(silent), None))


@pytest.mark.parametrize("address", ["localhost:abc", "http://[::1", "https://localhost:abc"])
def test_what_is_no_address_is_told(address: str) -> None:
    assert isinstance(read_ready(address, None), str)


def test_a_wrong_server_is_told() -> None:
    with serve_router(FakeRouter()) as address:
        assert isinstance(read_ready(address, None), str)


def test_without_a_router_the_status_is_2(silent: str) -> None:
    result = runner.invoke(app, ["doctor", "--address", silent, "--http", silent])
    assert result.exit_code == 2 and "does the router run" in result.stdout


class Unwatchable(FakeRouter):
    """It answers, but is gone when it should show its cluster."""

    def WatchCluster(self, request: pb.WatchClusterRequest, context: Any) -> Any:
        return context.abort(grpc.StatusCode.INTERNAL, "no streams here")


def test_a_cluster_that_cannot_be_watched_is_one_finding_among_others(silent: str) -> None:
    with serve_router(Unwatchable()) as address:
        found = list(examine(Site(address, silent)))
    assert {finding.check for finding in found} == {"ready", "reach", "redis", "picture"}
    assert any("no streams here" in finding.text for finding in found)


def test_a_missing_key_is_asked_for(silent: str) -> None:
    router = FakeRouter()
    router.failures = [UnauthenticatedError("an API key is needed")]
    with serve_router(router) as address:
        result = runner.invoke(app, ["doctor", "--address", address, "--http", silent, "--json"])
    found = [each for each in json.loads(result.stdout) if each["text"] == "an API key is needed"]
    assert result.exit_code == 1 and "--api-key" in found[0]["fix"]


def condition(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "common.store.condition"]
    return subprocess.run(command, input=url, capture_output=True, text=True, check=False)


def test_redis_tells_its_condition(valkey_url: str) -> None:
    said = json.loads(condition(valkey_url).stdout)
    assert (said["policy"], said["max_bytes"], said["append_only"]) == ("noeviction", 0, False)


def test_an_absent_redis_is_one_sentence(silent: str) -> None:
    done = condition(f"redis://{silent}/0")
    assert done.returncode == 1 and done.stderr.startswith("the shared store does not work now")
