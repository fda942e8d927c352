"""What a picture is to the router, whichever way it comes, and what does not matter to it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from PIL import Image

from tests.contract.router_bench import Bench, open_bench, png
from tests.contract.test_openai_chat import image_part
from tests.contract.test_router_grpc import generate, image, put, request
from tests.pictures import noise, save
from triptych.digests import file_digest
from triptych.errors import InvalidImageError
from triptych.v1 import router_pb2 as pb
from triptych.v1.types_pb2 import SamplingParams


def as_url(kind: str, data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(data).decode()}"}}


async def test_equal_bytes_in_another_shape_are_encoded_apart_with_another_grid(bench: Bench) -> None:
    values = noise(150, 30).tobytes()
    for size in ((150, 30), (30, 150)):
        data = save(Image.frombytes("RGB", size, values), "PNG")
        await put(bench, data)
        await generate(bench, request(image(data)))
    first, second = (asked.prompt.images[0].grid for asked in bench.fleet.requests("prefill"))
    assert list(first) != list(second) and len(bench.fleet.embeddings) == 2


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"user": "someone"},
    {"max_tokens": 3},
    {"seed": 4},
    {"stop": ["x"]},
    {"top_p": 0.5},
]


async def test_unrelated_options_need_no_second_encoding(bench: Bench) -> None:
    await bench.chat([image_part(png())])
    others = [
        await bench.chat([image_part(png()), {"type": "text", "text": "another question"}], **fields)
        for fields in OPTIONS
    ]
    assert [other.json()["usage"]["triptych"]["embedding_hits"] for other in others] == [1] * len(OPTIONS)


async def test_one_picture_has_one_name_by_whichever_door_it_comes(bench: Bench) -> None:
    record = await put(bench, png())
    await generate(bench, request(image(png())))
    await bench.chat([image_part(png())])
    await bench.chat([{"type": "image_url", "image_url": {"url": f"triptych:{record.image_id}"}}])
    asked = [sent.images[0] for sent in bench.fleet.requests("encoder")]
    assert {each.image_id for each in asked} == {record.image_id}
    assert (len(asked), len(bench.fleet.embeddings)) == (3, 1)


async def test_a_turned_picture_is_the_upright_one(bench: Bench) -> None:
    stored, exif = noise(24, 16), Image.Exif()
    exif[0x0112] = 6
    turned = await put(bench, save(stored, "PNG", exif=exif))
    upright = await put(bench, save(stored.transpose(Image.Transpose.ROTATE_270), "PNG"))
    assert (turned.width, turned.height, turned.tokens) == (16, 24, upright.tokens)
    assert turned.image_id == upright.image_id


async def test_an_animation_is_its_first_frame(bench: Bench) -> None:
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red", "lime", "blue")]
    moving = [
        await put(bench, save(frames[0], kind, save_all=True, append_images=frames[1:], **options))
        for kind, options in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}))
    ]
    still = await put(bench, save(frames[0], "PNG"))
    assert {(record.image_id, record.tokens) for record in moving} == {(still.image_id, still.tokens)}


async def test_the_bytes_decide_and_not_the_label(bench: Bench) -> None:
    data = save(noise(64, 48), "WEBP", lossless=True)
    for kind in ("gif", "webp", "x-unheard-of"):
        assert (await bench.chat([as_url(kind, data)])).status_code == 200
    assert len(bench.fleet.embeddings) == 1


SIDES = [(3, 3), (1, 200), (26, 28), (257, 27), (600, 800)]


async def test_small_narrow_and_portrait_pictures_are_taken_on_both_axes(bench: Bench) -> None:
    for size in (*SIDES, *(sides[::-1] for sides in SIDES)):
        record = await put(bench, data := save(noise(*size), "PNG"))
        await generate(bench, request(image(data)))
        span = bench.fleet.requests("prefill")[-1].prompt.images[0]
        assert span.length == record.tokens >= 1, size


async def test_too_narrow_pictures_are_refused_on_both_axes(bench: Bench) -> None:
    for size in ((300, 1), (1, 300), (10_000, 1), (1, 10_000)):
        with pytest.raises(InvalidImageError, match="200:1"):
            await put(bench, png(*size))


async def test_the_limit_of_pixels_is_a_setting(valkey_url: str) -> None:
    async with open_bench(valkey_url, (), max_image_pixels=6000) as bench:
        assert (await put(bench, png(100, 60))).width == 100
        with pytest.raises(InvalidImageError, match="limit is 6000 pixels"):
            await put(bench, png(100, 61))


async def test_a_broken_upload_leaves_nothing_and_is_resumed_by_asking_again(bench: Bench) -> None:
    data, begun = save(noise(200, 200), "BMP"), asyncio.Event()
    digest = file_digest(data)

    async def half() -> AsyncIterator[pb.PutImageRequest]:
        yield pb.PutImageRequest(header=pb.PutImageHeader(digest=digest, size_bytes=len(data)))
        yield pb.PutImageRequest(chunk=data[: len(data) // 2])
        begun.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(bench.stub.PutImage(half()))
    await begun.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    asked = pb.FindImagesRequest(digests=[digest])
    assert list((await bench.stub.FindImages(asked)).missing) == [digest]
    record = await put(bench, data)
    assert list((await bench.stub.FindImages(asked)).found) == [record]


async def test_uploading_a_known_picture_again_changes_nothing(bench: Bench) -> None:
    first = await put(bench, png())
    await generate(bench, request(image(png()), sampling=SamplingParams(max_tokens=1)))
    assert await put(bench, png()) == first
    await generate(bench, request(image(png())))
    assert len(bench.fleet.embeddings) == 1
