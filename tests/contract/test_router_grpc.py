"""RouterService as a client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.contract.router_bench import Bench, eventually, png
from triptych import AsyncClient
from triptych.channel import open_channel
from triptych.digests import file_digest
from triptych.errors import (
    ContextLengthError,
    ImagesNotFoundError,
    InvalidArgumentError,
    InvalidImageError,
    ModelNotFoundError,
    PayloadTooLargeError,
)
from triptych.status import rpc_errors
from triptych.v1 import router_pb2
from triptych.v1.types_pb2 import ContentPart, ImageRef, Message, SamplingParams


def request(*parts: ContentPart, **fields: Any) -> router_pb2.GenerateRequest:
    content = parts or (ContentPart(text="hello"),)
    return router_pb2.GenerateRequest(messages=[Message(role="user", content=content)], **fields)


def image(data: bytes) -> ContentPart:
    return ContentPart(image=ImageRef(digest=file_digest(data)))


async def generate(bench: Bench, asked: router_pb2.GenerateRequest) -> list[router_pb2.GenerateResponse]:
    with rpc_errors():
        return [response async for response in bench.stub.Generate(asked)]


async def put(bench: Bench, data: bytes, **header: Any) -> router_pb2.ImageRecord:
    async def pieces() -> AsyncIterator[router_pb2.PutImageRequest]:
        fields = {"digest": file_digest(data), "size_bytes": len(data), **header}
        yield router_pb2.PutImageRequest(header=router_pb2.PutImageHeader(**fields))
        for at in range(0, len(data), 100):
            yield router_pb2.PutImageRequest(chunk=data[at : at + 100])

    with rpc_errors():
        record: router_pb2.ImageRecord = (await bench.stub.PutImage(pieces())).image
    return record


async def test_an_answer_is_started_deltas_finished(bench: Bench) -> None:
    bench.say("some words")
    responses = await generate(bench, request(request_id="mine"))
    assert responses[0].started.request_id == "mine"
    assert "".join(response.delta.text for response in responses) == "some words"
    assert responses[-1].finished.usage.prompt_tokens == responses[0].started.prompt_tokens


async def test_an_uploaded_picture_is_found_and_used(bench: Bench) -> None:
    record = await put(bench, png())
    found = await bench.stub.FindImages(router_pb2.FindImagesRequest(digests=[record.digest, "0" * 64]))
    assert (list(found.found), list(found.missing)) == ([record], ["0" * 64])
    usage = (await generate(bench, request(image(png()))))[-1].finished.usage
    assert (usage.visual_tokens, usage.embedding_misses) == (record.tokens, 1)


async def test_a_picture_may_be_named_by_its_image_id(bench: Bench) -> None:
    record = await put(bench, png())
    part = ContentPart(image=ImageRef(digest=record.image_id))
    assert (await generate(bench, request(part)))[-1].finished.usage.images == 1


async def test_unknown_pictures_are_all_listed(bench: Bench) -> None:
    with pytest.raises(ImagesNotFoundError) as caught:
        await generate(bench, request(image(b"a"), image(b"b")))
    assert caught.value.digests == (file_digest(b"a"), file_digest(b"b"))


async def test_another_scope_does_not_know_a_picture(bench: Bench) -> None:
    await put(bench, png(), cache_salt="one")
    with pytest.raises(ImagesNotFoundError):
        await generate(bench, request(image(png()), cache_salt="two"))
    assert len(await generate(bench, request(image(png()), cache_salt="one"))) >= 2


async def test_scopes_have_their_own_keys(bench: Bench) -> None:
    for salt in ("one", "two"):
        await put(bench, png(), cache_salt=salt)
        await generate(bench, request(image(png()), cache_salt=salt))
    assert len(bench.fleet.embeddings) == 2


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (router_pb2.GenerateRequest(), "messages"),
        (request(sampling=SamplingParams(max_tokens=0)), "max_tokens"),
        (request(stop=[""]), "stop"),
        (request(cache_salt=""), "cache_salt"),
        (request(ContentPart()), "messages[0].content[0]"),
        (request(ContentPart(image=ImageRef(digest="A" * 64))), "messages[0].content[0].image.digest"),
        (router_pb2.GenerateRequest(messages=[Message(role="pope")]), "messages[0].role"),
        (router_pb2.GenerateRequest(prompt=router_pb2.RawPrompt(token_ids=[5] * 5000)), "prompt"),
    ],
)
async def test_bad_requests_name_the_field(bench: Bench, asked: router_pb2.GenerateRequest, param: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await generate(bench, asked)
    assert caught.value.param == param


async def test_an_unknown_model_is_not_found(bench: Bench) -> None:
    with pytest.raises(ModelNotFoundError):
        await generate(bench, request(model="other"))


async def test_long_names_in_an_error_do_not_lose_its_reason(bench: Bench) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        await generate(bench, request(ContentPart(text="hi"), model="ü" * 100_000))
    assert len(caught.value.message) < 2000


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ({"digest": "0" * 64}, InvalidArgumentError),
        ({"digest": "zz"}, InvalidArgumentError),
        ({"size_bytes": 5}, InvalidArgumentError),
        ({"size_bytes": 10**6}, InvalidArgumentError),
        ({"size_bytes": 2**40}, PayloadTooLargeError),
        ({"cache_salt": ""}, InvalidArgumentError),
    ],
)
async def test_bad_uploads_are_refused(bench: Bench, header: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await put(bench, png(), **header)
    assert (await put(bench, png())).width == 100


async def test_what_is_no_picture_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidImageError):
        await put(bench, b"no picture at all")


async def test_an_upload_begins_with_a_header(bench: Bench) -> None:
    async def pieces() -> AsyncIterator[router_pb2.PutImageRequest]:
        yield router_pb2.PutImageRequest(chunk=b"x")

    with pytest.raises(InvalidArgumentError), rpc_errors():
        await bench.stub.PutImage(pieces())


async def test_too_narrow_pictures_are_refused_at_upload(bench: Bench) -> None:
    for size in ((1, 900), (900, 1)):
        with pytest.raises(InvalidImageError, match="200"):
            await put(bench, png(*size))


async def test_models_are_listed(bench: Bench) -> None:
    (card,) = (await bench.stub.ListModels(router_pb2.ListModelsRequest())).models
    assert (card.name, card.family, card.context_length, card.max_images) == ("triptych-demo", "qwen2_vl", 4096, 16)


async def test_health_follows_readiness(bench: Bench) -> None:
    async with open_channel(f"127.0.0.1:{bench.router.port}") as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]

        async def status() -> int:
            return int((await check(health_pb2.HealthCheckRequest())).status)

        while await status() != health_pb2.HealthCheckResponse.SERVING:
            pass
        await bench.fleet.workers["encoder"][0].registration.close()
        while await status() != health_pb2.HealthCheckResponse.NOT_SERVING:
            pass


async def test_a_cancelled_answer_ends_every_stage(bench: Bench) -> None:
    bench.say("one two three")
    bench.fleet.script.pause_after = 1
    call = bench.stub.Generate(request())
    await call.read()
    await call.read()
    call.cancel()
    await eventually(lambda: bench.fleet.running == 0)
    assert call.cancelled()


async def test_a_deadline_ends_every_stage(bench: Bench) -> None:
    bench.say("one two three")
    bench.fleet.script.pause_after = 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in bench.stub.Generate(request(), timeout=1.0):
            pass
    await eventually(lambda: bench.fleet.running == 0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_text_of_megabytes_is_refused_unread(bench: Bench) -> None:
    with pytest.raises(ContextLengthError, match="characters") as caught:
        await generate(bench, request(ContentPart(text="word " * 1_000_000)))
    assert caught.value.param == "messages"
    assert (await generate(bench, request()))[-1].HasField("finished")


async def test_a_prompt_as_long_as_the_context_is_refused_by_its_own_length(bench: Bench) -> None:
    with pytest.raises(ContextLengthError, match=r"the prompt has \d+ tokens; the context holds") as caught:
        await generate(bench, request(ContentPart(text="zq" * 5000)))
    assert caught.value.param == "messages"


async def first(snapshots: AsyncIterator[Any], holds: Callable[[Any], object]) -> Any:
    async for snapshot in snapshots:
        if holds(snapshot):
            return snapshot
    pytest.fail("the stream has ended")


async def test_the_cluster_can_be_watched(bench: Bench) -> None:
    bench.say("one two three")
    bench.fleet.script.pause_after = 1
    async with AsyncClient(f"127.0.0.1:{bench.router.port}") as client:
        asking = asyncio.create_task(client.generate("hello").answer())
        async with aclosing(client.watch_cluster(every_s=0.1)) as snapshots:
            busy = await first(snapshots, lambda each: each.running_requests and each.promised_tokens)
            assert {status.info.instance_id: status.requests for status in busy.workers if status.requests}
            assert all(status.reachable for status in busy.workers)
            bench.fleet.script.resume.set()
            await asking
            done = await first(snapshots, lambda each: not each.running_requests)
    assert (done.finished_requests, done.queue.waiting, list(done.missing)) == (1, 0, [])
    assert done.completion_tokens == len(bench.fleet.script.answer)
