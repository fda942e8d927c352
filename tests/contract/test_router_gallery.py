"""ListImages: what the router tells about known pictures, and to whom."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from tests.contract.router_bench import Bench, png
from tests.contract.test_router_grpc import generate, image, put, request
from tests.pictures import noise
from triptych.digests import file_digest
from triptych.errors import ImagesNotFoundError, InvalidArgumentError
from triptych.status import rpc_errors
from triptych.v1.router_pb2 import KnownImage, ListImagesRequest, ListImagesResponse


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


async def listed(bench: Bench, **fields: Any) -> ListImagesResponse:
    with rpc_errors():
        response: ListImagesResponse = await bench.stub.ListImages(ListImagesRequest(**fields))
    return response


async def settled(bench: Bench, uses: int) -> list[KnownImage]:
    """The list, once `uses` are written: that happens in the background."""
    found: list[KnownImage] = []
    while sum(known.uses for known in found) < uses:
        found = list((await listed(bench)).images)
    return found


async def test_requests_are_counted_by_picture_and_not_by_occurrence_or_file(bench: Bench) -> None:
    picture = noise(96, 64)
    first, second = saved(picture, "PNG"), saved(picture, "BMP")
    for data in (first, second, png()):
        await put(bench, data)
    await generate(bench, request(image(first), image(second), image(first)))
    await generate(bench, request(image(second)))
    known = await settled(bench, 2)
    assert [(each.uses, set(each.digests)) for each in known] == [
        (2, {file_digest(first), file_digest(second)}),
        (0, {file_digest(png())}),
    ]
    assert known[0].image.tokens > 0 and known[0].last_use_unix_ms > known[1].last_use_unix_ms


async def test_a_request_that_lacks_a_picture_uses_none(bench: Bench) -> None:
    await put(bench, png())
    with pytest.raises(ImagesNotFoundError):
        await generate(bench, request(image(png()), image(b"unknown")))
    await generate(bench, request(image(png())))
    assert [each.uses for each in await settled(bench, 1)] == [1]


async def test_needless_encodings_of_one_picture_form_a_group(bench: Bench) -> None:
    picture = noise(96, 64, 3)
    files = [saved(picture, "JPEG", quality=quality) for quality in range(30, 90, 10)]
    ids = {(await put(bench, data)).image_id for data in (*files, saved(picture, "PNG"))}
    await put(bench, saved(noise(96, 64, 4), "PNG"))
    await generate(bench, request(*map(image, files)))
    await settled(bench, len(files))
    (group,) = (await listed(bench)).look_alikes
    assert (set(group.image_ids), len(ids)) == (ids, 7)
    assert group.encodings == len(bench.fleet.embeddings) == 6


async def test_a_look_alike_is_encoded_for_itself(bench: Bench) -> None:
    picture = noise(96, 64, 3)
    files = [saved(picture, "JPEG", quality=quality) for quality in (60, 90)]
    for data in files:
        await put(bench, data)
        await generate(bench, request(image(data)))
    assert len(bench.fleet.embeddings) == 2


async def test_another_scope_lists_nothing(bench: Bench) -> None:
    await put(bench, png(), cache_salt="one")
    while not (await listed(bench, cache_salt="one")).images:
        pass
    assert list((await listed(bench)).images) == list((await listed(bench, cache_salt="two")).images) == []


@pytest.mark.parametrize("fields", [{"page_size": 1001}, {"page_token": "x"}, {"cache_salt": ""}])
async def test_bad_questions_are_refused(bench: Bench, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await listed(bench, **fields)
    assert caught.value.param in fields
