"""Pictures behind http URLs, as OpenAI clients meet them: what is fetched, what is refused, and in which words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.contract.router_bench import Bench, eventually, open_bench, png
from tests.contract.test_openai_chat import image_part
from tests.contract.test_router_grpc import generate, image, put, request
from tests.pictures import noise, save
from tests.web import Page, Site, serving
from triptych.digests import file_digest
from triptych.v1 import encoder_pb2, types_pb2

WORKERS = ("encoder", "prefill", "decode")
PARAM = "messages[0].content[0].image_url.url"
UNUSABLE = (
    (Page(b"<html>no</html>", 404), 400, "answered 404"),
    (Page(b"<html>hello</html>"), 400, "image"),
    (Page(b""), 400, "image"),
    (Page(png()[:-30]), 400, "image"),
    (Page(b"x", headers={"content-encoding": "gzip"}), 400, "compressed"),
    (Page(status=302, headers={"location": "http://127.0.0.1:9/"}), 400, "no images from"),
    (Page(length=False, endless=b"x" * 2**16), 413, "limit"),
)
FORBIDDEN = (
    "http://169.254.169.254/latest/meta-data",
    "http://localhost:6379/",
    "http://[::1]/",
    "http://10.0.0.1/",
    "http://127.1/",
    "http://localhost./",
    "http://user:secret@localhost/",
    "http://[::ffff:127.0.0.1]/",
    "ftp://localhost/",
    "file:///etc/hostname",
)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as site:
        yield site


def settings(site: Site, **more: Any) -> dict[str, Any]:
    """What lets a router fetch from the site, which is on loopback."""
    domains = [f"localhost:{site.port}"]
    return {"image_domains": domains, "image_private_networks": ["127.0.0.0/8"], "image_fetch_timeout_s": 20, **more}


@pytest.fixture
async def fetching(valkey_url: str, site: Site) -> AsyncIterator[Bench]:
    async with open_bench(valkey_url, WORKERS, **settings(site)) as bench:
        yield bench


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def link(site: Site, path: str = "/picture") -> dict[str, Any]:
    return part(f"http://localhost:{site.port}{path}")


async def test_the_same_picture_is_one_however_it_comes(fetching: Bench, site: Site) -> None:
    site.pages["/picture"] = Page(png())
    by_url = (await fetching.chat([link(site)])).json()["usage"]["triptych"]
    by_data = (await fetching.chat([image_part(png())])).json()["usage"]["triptych"]
    await put(fetching, png())
    by_name = (await generate(fetching, request(image(png()))))[-1].finished.usage
    assert [by_url["embedding_misses"], by_data["embedding_hits"], by_name.embedding_hits] == [1, 1, 1]
    keys = [asked.prompt.images[0].embedding_key for asked in fetching.fleet.requests("decode")]
    assert (len(set(keys)), fetching.fleet.embeddings) == (1, {keys[0]})


async def test_logs_hold_no_url(fetching: Bench, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.pages["/picture?signature=secret"] = Page(png())
    with caplog.at_level(logging.DEBUG):
        assert (await fetching.chat([link(site, "/picture?signature=secret")])).status_code == 200
        assert (await fetching.chat([link(site, "/other?signature=secret")])).status_code == 400
    assert len(site.visits) == 2 and "signature" not in caplog.text


async def test_a_url_that_occurs_twice_is_fetched_once(fetching: Bench, site: Site) -> None:
    site.pages["/picture"] = Page(png())
    assert (await fetching.chat([link(site), link(site)])).json()["usage"]["triptych"]["images"] == 2
    assert len(site.visits) == 1


async def test_an_unchanged_picture_costs_no_bytes(fetching: Bench, site: Site) -> None:
    site.pages["/picture"] = Page(png(), etag='"v1"')
    for _ in range(3):
        assert (await fetching.chat([link(site)])).status_code == 200
    assert (len(site.visits), site.sent) == (3, len(png()))


async def test_a_changed_picture_is_seen(fetching: Bench, site: Site) -> None:
    for version, color in enumerate(("red", "blue")):
        site.pages["/picture"] = Page(png(color=color), etag=f'"v{version}"')
        await fetching.chat([link(site)])
    assert len(fetching.fleet.embeddings) == 2


async def test_a_picture_that_the_store_has_lost_is_fetched_again(valkey_url: str, site: Site) -> None:
    site.pages["/picture"] = Page(png(), etag='"v1"')
    async with open_bench(valkey_url, WORKERS, **settings(site, recent_uploads=0)) as bench:
        await bench.chat([link(site)])
        for key in await bench.redis.keys("triptych:image:*"):
            await bench.redis.delete(key)
        assert (await bench.chat([link(site)])).status_code == 200
    assert site.sent == 2 * len(png())


async def test_scopes_do_not_share_what_a_url_led_to(fetching: Bench, site: Site) -> None:
    site.pages["/picture"] = Page(png(), etag='"v1"')
    for salt in ("one", "two"):
        await fetching.chat([link(site)], cache_salt=salt)
    assert (site.sent, len(fetching.fleet.embeddings)) == (2 * len(png()), 2)


async def test_the_bytes_decide_the_format(fetching: Bench, site: Site) -> None:
    site.pages["/picture.gif"] = Page(save(noise(64, 64), "WEBP", lossless=True), headers={"content-type": "image/gif"})
    site.pages["/picture"] = Page(save(noise(64, 64), "PNG"), headers={"content-type": "text/plain"})
    answers = [await fetching.chat([link(site, path)]) for path in ("/picture.gif", "/picture")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(fetching.fleet.embeddings) == 1


async def test_what_cannot_be_used_names_the_field(fetching: Bench, site: Site) -> None:
    for page, status, words in UNUSABLE:
        site.pages["/picture"] = page
        answer = await fetching.chat([link(site)])
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], words in error["message"]) == (status, PARAM, True), error
    site.pages["/picture"] = Page(png())
    assert (await fetching.chat([link(site)])).status_code == 200


async def test_every_other_url_is_refused_unconnected(fetching: Bench, site: Site) -> None:
    for url in FORBIDDEN:
        answer = await fetching.chat([part(url)])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, PARAM), url
        assert "secret" not in answer.text
    assert site.connections == 0


async def test_nothing_is_fetched_by_default(bench: Bench, site: Site) -> None:
    answer = await bench.chat([link(site)])
    assert (answer.status_code, answer.json()["error"]["code"], site.connections) == (400, "remote_image", 0)


async def test_loopback_is_closed_unless_it_is_opened(valkey_url: str, site: Site) -> None:
    async with open_bench(valkey_url, WORKERS, **settings(site, image_private_networks=[])) as bench:
        assert (await bench.chat([link(site)])).status_code == 400
    assert site.connections == 0


async def test_the_allow_list_means_no_data_urls(fetching: Bench) -> None:
    assert (await fetching.chat([image_part(png())])).status_code == 200


async def test_a_silent_server_keeps_nobody_else_waiting(valkey_url: str, site: Site) -> None:
    site.pages["/picture"] = Page(hang=True)
    async with open_bench(valkey_url, WORKERS, **settings(site, image_fetch_timeout_s=1.0)) as bench:
        silent = asyncio.create_task(bench.chat([link(site)]))
        await eventually(lambda: bool(site.visits) or silent.done())
        assert (await bench.chat("text")).status_code == 200
        answer = await silent
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, PARAM)


async def test_a_failed_fetch_is_not_retried_by_the_official_client(fetching: Bench, site: Site) -> None:
    client = openai.AsyncOpenAI(base_url=f"{fetching.url}/v1", api_key="unused")
    messages: Any = [{"role": "user", "content": [link(site, "/missing")]}]
    with pytest.raises(openai.BadRequestError, match="answered 404"):
        await client.chat.completions.create(model="triptych-demo", messages=messages, stream=True)
    await client.close()
    assert len(site.visits) == 1


def test_workers_and_the_grpc_interface_take_names_and_bytes_only() -> None:
    files = (encoder_pb2.DESCRIPTOR, types_pb2.DESCRIPTOR)
    fields = {
        field.name for file in files for message in file.message_types_by_name.values() for field in message.fields
    }
    assert not any("url" in name or "uri" in name or "path" in name for name in fields)


async def test_a_url_is_no_digest(bench: Bench) -> None:
    digest = f"http://localhost/{file_digest(b'')}"
    part = types_pb2.ContentPart(image=types_pb2.ImageRef(digest=digest))
    asked = request(part)
    with pytest.raises(Exception, match="64 lower-case"):
        await generate(bench, asked)
