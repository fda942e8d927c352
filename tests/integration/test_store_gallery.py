"""Figures about known pictures in a real Valkey."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable

import pytest
from redis.asyncio import Redis

from common.store import gallery as gallery_module
from common.store.client import blob_key, connect, record_key
from common.store.gallery import Gallery, Note
from common.store.images import ImageStore, StoredImage
from services.router.pictures.gallery import Notes, read_page
from tests.valkey import free_port, run_valkey
from triptych.errors import InvalidArgumentError

LOOK = "0123456789abcdef808080"


def image(number: int, file: str = "a", look: str = LOOK) -> StoredImage:
    return StoredImage(file * 64, f"{number:064x}", 30, 20, look)


async def store(redis: Redis, *images: StoredImage, scope: str = "scope") -> Gallery:
    """A gallery that was told of these uploads, one after another."""
    gallery = Gallery(redis)
    for each in images:
        await ImageStore(redis).put(scope, each, b"bytes")
        await gallery.note(scope, [Note(each)])
    return gallery


async def uses(gallery: Gallery) -> list[tuple[int, int]]:
    return [(int(each.image.image_id, 16), each.uses) for each in await gallery.read("scope")]


async def test_a_record_of_an_earlier_release_has_no_look(redis: Redis) -> None:
    old = {"scope": "scope", "digest": "a" * 64, "image_id": "b" * 64, "width": 3, "height": 1}
    await redis.set(record_key("scope", "a" * 64), json.dumps(old))
    await redis.set(blob_key("scope", "b" * 64), b"bytes")
    assert (await ImageStore(redis).find("scope", ["a" * 64]))["a" * 64].look == ""


async def test_uses_add_up_and_the_latest_comes_first(redis: Redis) -> None:
    gallery = await store(redis, image(1), image(2))
    await gallery.note("scope", [Note(image(2), 3), Note(image(1), 1)])
    await gallery.note("scope", [Note(image(2), 1)])
    assert await uses(gallery) == [(2, 4), (1, 1)]


async def test_every_file_of_a_picture_is_listed_once(redis: Redis) -> None:
    gallery = await store(redis, image(1, "a"), image(1, "b"), image(1, "a"))
    (known,) = await gallery.read("scope")
    assert known.files == ("a" * 64, "b" * 64)
    assert known.image == image(1, "a")


async def test_last_uses_differ_and_never_go_back(redis: Redis) -> None:
    gallery = await store(redis, *map(image, range(5)))
    await gallery.note("scope", [Note(image(number)) for number in range(5)])
    times = [each.last_use_us for each in await gallery.read("scope")]
    assert times == sorted(set(times), reverse=True)


async def test_another_scope_lists_nothing(redis: Redis) -> None:
    gallery = await store(redis, image(1))
    assert await gallery.read("other") == []


async def test_a_picture_whose_bytes_are_gone_is_left_out(redis: Redis) -> None:
    gallery = await store(redis, image(1), image(2))
    await redis.delete(blob_key("scope", image(1).image_id))
    assert await uses(gallery) == [(2, 0)]


async def test_the_list_is_bounded_and_expires(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery_module, "MAX_PICTURES", 3)
    monkeypatch.setattr(gallery_module, "MAX_FILES", 2)
    gallery = await store(redis, *map(image, range(6)), *(image(5, file) for file in "bcd"))
    known = await gallery.read("scope")
    assert [int(each.image.image_id, 16) for each in known] == [5, 4, 3]
    assert known[0].files == ("a" * 64, "b" * 64)
    keys = await redis.keys("triptych:gallery:*")
    assert [await redis.ttl(key) > 0 for key in keys] == [True, True]
    assert await redis.hlen("triptych:gallery:{scope}:entries") == 3


async def test_an_unused_picture_goes_while_others_stay(redis: Redis) -> None:
    gallery = Gallery(redis, ttl_s=0.3)
    await ImageStore(redis).put("scope", image(1), b"bytes")
    await gallery.note("scope", [Note(image(1))])
    await asyncio.sleep(0.2)
    await gallery.note("scope", [Note(image(2))])
    await asyncio.sleep(0.2)
    await gallery.note("scope", [Note(image(2))])
    assert await redis.zcard("triptych:gallery:{scope}:index") == 1


@pytest.mark.parametrize("value", [b"", b"\x80", b"[]", b"{}", b'{"files": [], "uses": 0}', b"7"])
async def test_a_damaged_entry_is_left_out_and_begins_anew(redis: Redis, value: bytes) -> None:
    gallery = await store(redis, image(1))
    await redis.hset("triptych:gallery:{scope}:entries", image(1).image_id, value)
    assert await gallery.read("scope") == []
    await gallery.note("scope", [Note(image(1), 1)])
    assert await uses(gallery) == [(1, 1)]


async def pages(gallery: Gallery, size: int) -> AsyncIterator[list[int]]:
    token = ""
    while True:
        page = await read_page(gallery, "scope", size, token)
        yield [int(each.image.image_id, 16) for each in page.pictures]
        if not (token := page.next_token):
            return


@pytest.mark.parametrize("size", [1, 2, 3, 7, 0])
async def test_pages_together_are_the_list(redis: Redis, size: int) -> None:
    gallery = await store(redis, *map(image, range(7)))
    found = [page async for page in pages(gallery, size)]
    assert [number for page in found for number in page] == [6, 5, 4, 3, 2, 1, 0]
    assert all(len(page) <= (size or 100) for page in found)


@pytest.mark.parametrize(("size", "token"), [(1001, ""), (1, "x"), (1, "-1"), (1, "9" * 30), (1, "\u0663")])
async def test_bad_pages_are_refused(redis: Redis, size: int, token: str) -> None:
    with pytest.raises(InvalidArgumentError):
        await read_page(Gallery(redis), "scope", size, token)


async def test_look_alikes_come_with_the_first_page_only(redis: Redis) -> None:
    gallery = await store(redis, image(1), image(2), image(3, look="f" * 22))
    first = await read_page(gallery, "scope", 1, "")
    assert [{int(known.image.image_id, 16) for known in group} for group in first.groups] == [{1, 2}]
    assert (await read_page(gallery, "scope", 1, first.next_token)).groups == []


def figures(found: Iterable[tuple[int, int]]) -> dict[int, int]:
    return dict(found)


async def test_notes_are_written_in_the_background_and_each_picture_counts_once_a_request(redis: Redis) -> None:
    gallery = await store(redis, image(1), image(2))
    notes = Notes(gallery)
    for _ in range(3):
        notes.add("scope", [image(1, "a"), image(1, "b"), image(2)], uses=1)
    await notes.close()
    assert figures(await uses(gallery)) == {1: 3, 2: 3}


async def test_a_store_that_is_away_costs_only_the_figures() -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0")
    notes = Notes(Gallery(client))
    notes.add("scope", [image(1)], uses=1)
    await notes.close()
    await notes.close()
    await client.aclose()


async def test_notes_resume_after_an_outage_and_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.router.pictures.gallery.MAX_PENDING", 10)
    with run_valkey() as server:
        client = connect(server.url)
        gallery = await store(client, image(1))
        server.freeze()
        notes = Notes(gallery)
        for number in range(100):
            notes.add("scope", [image(number)], uses=1)
        server.thaw()
        await notes.close()
        notes.add("scope", [image(1)], uses=1)
        await notes.close()
        assert await client.zcard("triptych:gallery:{scope}:index") <= 10
        assert figures(await uses(gallery)) == {1: 2}
        await client.aclose()
