"""TLS and mutual TLS on every hop: client to router, router to workers, over gRPC and HTTP."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from common.rpc.tls import ServerTls, client_tls, server_tls
from common.store.client import connect
from services.router.service import RouterProcess
from services.router.settings import RouterSettings
from tests.certificates import HOST, Identity, issue
from tests.contract.fleet import Fleet
from tests.contract.router_bench import FAMILY, MODEL, TOKENIZER
from triptych.aio import AsyncClient
from triptych.channel import open_channel
from triptych.client import Client
from triptych.errors import ConfigError
from triptych.tls import Tls
from triptych.v1.router_pb2 import ListModelsRequest
from triptych.v1.router_pb2_grpc import RouterServiceStub


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return issue(tmp_path / "ours")


@pytest.fixture
async def router(valkey_url: str, identity: Identity) -> AsyncIterator[RouterProcess]:
    """A router and one worker of each role, which all want certificates from each other."""
    redis = connect(valkey_url)
    await redis.flushall()
    fleet = Fleet(redis, FAMILY.preprocessing_fingerprint, identity.server)
    for kind in ("encoder", "prefill", "decode"):
        await fleet.add(kind)
    fleet.script.answer = TOKENIZER.encode("in secret", add_special_tokens=False)
    options: dict[str, Any] = {"model": MODEL, "redis_url": valkey_url, "http_port": 0, "drain_grace_s": 0}
    options |= {**identity.settings, "http_client_ca": identity.ca}
    router = RouterProcess(RouterSettings(**options))
    await router.start()
    yield router
    await router.stop()
    await fleet.close()
    await redis.aclose()


async def test_a_request_crosses_every_hop_with_certificates(router: RouterProcess, identity: Identity) -> None:
    async with AsyncClient(f"{HOST}:{router.port}", tls=identity.client) as client:
        answer = await client.generate("hello", timeout_s=60).answer()
    assert answer.text == "in secret"


@pytest.mark.parametrize("kind", ["none", "stranger", "plain"])
async def test_callers_without_our_certificate_are_refused(
    router: RouterProcess, identity: Identity, tmp_path: Path, kind: str
) -> None:
    stranger = issue(tmp_path / "stranger")
    tls = {"none": Tls(identity.ca), "stranger": Tls(identity.ca, stranger.cert, stranger.key), "plain": None}[kind]
    async with open_channel(f"{HOST}:{router.port}", tls) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await RouterServiceStub(channel).ListModels(ListModelsRequest(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_of_another_authority_is_not_trusted(router: RouterProcess, tmp_path: Path) -> None:
    async with open_channel(f"{HOST}:{router.port}", issue(tmp_path / "stranger").client) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await RouterServiceStub(channel).ListModels(ListModelsRequest(), timeout=20)


async def test_http_speaks_tls_and_wants_a_certificate(router: RouterProcess, identity: Identity) -> None:
    context = ssl.create_default_context(cafile=identity.ca)
    url = f"https://{HOST}:{router.http_port}/healthz"
    async with httpx.AsyncClient(verify=context) as bare:
        with pytest.raises(httpx.TransportError):
            await bare.get(url)
        with pytest.raises(httpx.TransportError):
            await bare.get(url.replace("https", "http"))
    context.load_cert_chain(identity.cert, identity.key)
    async with httpx.AsyncClient(verify=context) as known:
        assert (await known.get(url)).status_code == 200


def test_the_blocking_client_refuses_what_is_no_certificate(tmp_path: Path, identity: Identity) -> None:
    (tmp_path / "text").write_text("hello")
    for tls in (Tls(tmp_path / "text"), Tls(tmp_path / "nothing"), Tls(identity.ca, identity.cert)):
        with pytest.raises(ConfigError):
            Client(f"{HOST}:1", tls=tls)


def test_files_that_do_not_belong_together_stop_a_service(tmp_path: Path, identity: Identity) -> None:
    other = issue(tmp_path / "other")
    with pytest.raises(ConfigError, match="no certificate with its key"):
        ServerTls(identity.cert, other.key).credentials()
    for half in ((identity.cert, None, None), (None, identity.key, None), (None, None, identity.ca)):
        with pytest.raises(ConfigError):
            server_tls(*half)
    with pytest.raises(ConfigError):
        client_tls(tmp_path / "nothing.pem", None, None)


def test_without_settings_everything_is_plain_text() -> None:
    assert (server_tls(None, None, None), client_tls(None, None, None)) == (None, None)
