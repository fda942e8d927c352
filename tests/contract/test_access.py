"""API keys, tenants and quotas, as clients of both interfaces meet them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.contract.router_bench import Bench, eventually, open_bench, png
from tests.contract.test_openai_chat import image_part
from tests.contract.test_router_grpc import request
from triptych import AsyncClient, Retry
from triptych.channel import open_channel, with_key
from triptych.errors import (
    ImagesNotFoundError,
    InternalError,
    PermissionDeniedError,
    QuotaExceededError,
    UnauthenticatedError,
    UnavailableError,
)
from triptych.keys import key_digest
from triptych.messages import Image, user
from triptych.status import rpc_errors
from triptych.v1 import router_pb2
from triptych.v1.router_pb2_grpc import RouterServiceStub

SECRET = "zebracrossing"
KEYS = {"acme": "tk-acme-key", "zoo": "tk-zoo-key", "tiny": "tk-tiny-key"}
TINY = "[tenants.tiny]\noperator = true\nrequests = 1\nimages = 1\ntokens_per_minute = 4000\n"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    entries = [f'[[keys]]\ntenant = "{name}"\nsha256 = "{key_digest(key)}"\n' for name, key in KEYS.items()]
    path.write_text("".join(entries) + TINY)
    return path


@pytest.fixture
async def locked(valkey_url: str, keys_file: Path) -> AsyncIterator[Bench]:
    """A router with a keys file."""
    async with open_bench(valkey_url, ("encoder", "prefill", "decode"), keys_file=keys_file) as bench:
        yield bench


def leave_one_key(keys_file: Path) -> None:
    """Only `tk-new` of acme is known from now on."""
    beside = keys_file.with_suffix(".new")
    beside.write_text(f'[[keys]]\ntenant = "acme"\nsha256 = "{key_digest("tk-new")}"\n')
    beside.replace(keys_file)


def bearer(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


async def chat(bench: Bench, tenant: str, content: Any = "hello", **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return await bench.http.post("/v1/chat/completions", json=body, headers=bearer(tenant))


def client(bench: Bench, tenant: str | None) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{bench.router.port}", api_key=KEYS[tenant] if tenant else None)


def rpcs() -> list[str]:
    return [method.name for method in router_pb2.DESCRIPTOR.services_by_name["RouterService"].methods]


async def test_every_rpc_needs_a_key(locked: Bench) -> None:
    async with open_channel(f"127.0.0.1:{locked.router.port}") as channel:
        codes = {}
        for name in rpcs():
            call = channel.stream_stream(f"/triptych.v1.RouterService/{name}", _nothing, _nothing)(iter([b""]))
            codes[name] = await call.code()
    assert codes == dict.fromkeys(rpcs(), grpc.StatusCode.UNAUTHENTICATED)


def _nothing(message: bytes) -> bytes:
    return message


async def test_every_other_path_needs_a_key(locked: Bench) -> None:
    answers = []
    for header in ("", "Bearer tk-acme-kez", "Bearer", "Basic tk-acme-key"):
        headers = {"authorization": header}
        answers += [await locked.http.get(path, headers=headers) for path in ("/v1/models", "/v1/no", "/metricsx")]
        answers.append(await locked.http.post("/v1/chat/completions", content=b"{", headers=headers))
    assert {answer.status_code for answer in answers} == {401}
    error = answers[-1].json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "unauthenticated")
    assert answers[-1].headers["www-authenticate"] == "Bearer"


async def test_probes_and_metrics_stay_open(locked: Bench) -> None:
    answers = [await locked.http.get(path) for path in ("/healthz", "/readyz", "/metrics")]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert not any(secret in answers[2].text for secret in (*KEYS, *KEYS.values()))


async def test_a_known_key_is_answered_on_both_interfaces(locked: Bench) -> None:
    locked.say("some words")
    answer = await chat(locked, "acme")
    async with client(locked, "acme") as known:
        told = await known.generate("hello").answer()
    assert (answer.json()["choices"][0]["message"]["content"], told.text) == ("some words", "some words")


async def test_the_sdk_says_that_a_key_is_missing(locked: Bench) -> None:
    async with client(locked, None) as unknown:
        with pytest.raises(UnauthenticatedError, match="API key is needed"):
            await unknown.list_models()


async def test_a_picture_of_one_tenant_is_unknown_to_another(locked: Bench) -> None:
    picture = Image.from_bytes(png())
    async with client(locked, "acme") as acme, client(locked, "zoo") as zoo:
        await acme.put_image(picture, cache_salt="s")
        for salt in (None, "s"):
            assert list((await zoo.find_images([picture.digest], salt)).missing) == [picture.digest]
        with pytest.raises(ImagesNotFoundError):
            await zoo.generate([user(Image(picture.digest), "?")], cache_salt="s").answer()
        assert (await acme.generate([user(Image(picture.digest), "?")], cache_salt="s").answer()).usage.images == 1


async def test_tenants_share_neither_embeddings_nor_kv(locked: Bench) -> None:
    for tenant, salt in (("acme", None), ("zoo", None), ("acme", "s"), ("zoo", "s"), ("acme", None)):
        fields = {"cache_salt": salt} if salt else {}
        assert (await chat(locked, tenant, [image_part(png())], **fields)).status_code == 200
    scopes = [asked.prompt.cache_scope for asked in locked.fleet.requests("decode")]
    assert (len(set(scopes)), scopes[0], len(locked.fleet.embeddings)) == (4, scopes[4], 4)


async def test_sharing_across_tenants_is_a_setting(valkey_url: str, keys_file: Path) -> None:
    settings = {"keys_file": keys_file, "share_across_tenants": True}
    async with open_bench(valkey_url, ("encoder", "prefill", "decode"), **settings) as bench:
        for tenant in ("acme", "zoo"):
            await chat(bench, tenant, [image_part(png())])
        assert len({asked.prompt.cache_scope for asked in bench.fleet.requests("decode")}) == 1
        assert len(bench.fleet.embeddings) == 1


async def test_only_operators_watch_the_cluster(locked: Bench) -> None:
    async with open_channel(f"127.0.0.1:{locked.router.port}") as channel:
        stubs: list[Any] = [RouterServiceStub(with_key(channel, KEYS[tenant])) for tenant in ("tiny", "acme")]
        assert (await stubs[0].WatchCluster(router_pb2.WatchClusterRequest()).read()).workers
        with pytest.raises(PermissionDeniedError), rpc_errors():
            await stubs[1].WatchCluster(router_pb2.WatchClusterRequest()).read()


async def test_neither_logs_nor_errors_repeat_what_was_asked(locked: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asked: list[dict[str, Any]] = [{}, {"max_tokens": 10**6}, {"temperature": SECRET}, {"tool_choice": "required"}]
    answers = [await chat(locked, "acme", SECRET, **fields) for fields in asked]
    answers.append(await chat(locked, "acme", [{"type": "image_url", "image_url": {"url": f"data:{SECRET}"}}]))
    answers.append(await locked.http.post("/v1/completions", content=f'{{"prompt": {SECRET}', headers=bearer("acme")))
    answers.append(await locked.http.get("/v1/models", headers={"authorization": f"Bearer {SECRET}"}))
    locked.fleet.script.decode_errors = [InternalError("broken")]
    answers.append(await chat(locked, "acme", SECRET))
    assert [answer.status_code for answer in answers] == [200, 400, 400, 400, 400, 400, 401, 500]
    said = caplog.text + "".join(answer.text for answer in answers)
    assert SECRET not in said and KEYS["acme"] not in said


async def test_refusals_are_counted(locked: Bench) -> None:
    await locked.http.post("/v1/chat/completions", json={})
    assert 'status="unauthenticated"} 1.0' in (await locked.http.get("/metrics")).text


async def test_a_request_in_flight_blocks_the_next_of_its_tenant_only(locked: Bench) -> None:
    locked.say("one two")
    locked.fleet.script.pause_after = 1
    running = asyncio.create_task(chat(locked, "tiny"))
    await eventually(lambda: locked.fleet.running == 1)
    refused = await chat(locked, "tiny")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "quota_exceeded"
    async with open_channel(f"127.0.0.1:{locked.router.port}") as channel:
        stub: Any = RouterServiceStub(with_key(channel, KEYS["tiny"]))
        with pytest.raises(QuotaExceededError), rpc_errors():
            await stub.Generate(request()).read()
        with pytest.raises(QuotaExceededError), rpc_errors():
            await stub.Tokenize(router_pb2.TokenizeRequest(request=request()))
    other = asyncio.create_task(chat(locked, "acme"))
    locked.fleet.script.resume.set()
    assert [(await answer).status_code for answer in (running, other)] == [200, 200]
    assert (await chat(locked, "tiny")).status_code == 200


async def test_looking_things_up_takes_of_the_quota(locked: Bench) -> None:
    locked.say("one two")
    locked.fleet.script.pause_after = 1
    running = asyncio.create_task(chat(locked, "tiny"))
    await eventually(lambda: locked.fleet.running == 1)
    address = f"127.0.0.1:{locked.router.port}"
    async with AsyncClient(address, api_key=KEYS["tiny"], retry=Retry(tries=1)) as tiny:
        for asking in (tiny.find_images([]), tiny.list_images(), tiny.explain()):
            with pytest.raises(QuotaExceededError):
                await asking
    assert (await locked.http.get("/v1/images", headers=bearer("tiny"))).status_code == 429
    locked.fleet.script.resume.set()
    await running
    assert (await locked.http.get("/v1/images", headers=bearer("tiny"))).status_code == 200


async def test_a_revoked_key_sees_no_more_of_the_cluster(locked: Bench, keys_file: Path) -> None:
    async with client(locked, "tiny") as tiny, aclosing(tiny.watch_cluster(every_s=0.1)) as snapshots:
        assert (await anext(snapshots)).workers
        leave_one_key(keys_file)
        with pytest.raises(UnauthenticatedError):
            async for _ in snapshots:
                pass


async def test_a_drain_does_not_wait_for_those_who_watch(valkey_url: str) -> None:
    async with open_bench(valkey_url, (), drain_grace_s=60) as bench:
        watching = bench.stub.WatchCluster(router_pb2.WatchClusterRequest(every_ms=60_000))
        await watching.read()
        stopping = asyncio.create_task(bench.router.stop())
        with pytest.raises(UnavailableError, match="draining"), rpc_errors():
            await watching.read()
        await stopping


async def test_images_are_counted_by_what_they_show(locked: Bench) -> None:
    twice = await chat(locked, "tiny", [image_part(png()), image_part(png())])
    two = await chat(locked, "tiny", [image_part(png()), image_part(png(color="blue"))])
    assert (twice.status_code, two.status_code) == (200, 429)


async def test_tokens_are_refused_before_any_work(locked: Bench) -> None:
    locked.say("some words")
    assert (await chat(locked, "tiny", max_tokens=5)).status_code == 200
    refused = await chat(locked, "tiny", max_tokens=4000)
    assert (refused.status_code, len(locked.fleet.requests("decode"))) == (429, 1)
    assert "4000 tokens a minute" in refused.json()["error"]["message"]


async def test_new_keys_are_in_force_without_a_restart(locked: Bench, keys_file: Path) -> None:
    leave_one_key(keys_file)
    while (await locked.http.get("/v1/models", headers={"authorization": "Bearer tk-new"})).status_code != 200:
        pass
    assert (await chat(locked, "zoo")).status_code == 401
