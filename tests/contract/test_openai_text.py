"""Raw prompts, tokens and models over HTTP, and the same over gRPC."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.router.generation import MAX_DETOKENIZED
from tests.contract.router_bench import TOKENIZER, Bench, png
from tests.contract.test_openai_chat import client_of, events_of, image_part
from tests.contract.test_router_grpc import generate, image, put, request
from triptych.digests import file_digest
from triptych.errors import InvalidArgumentError
from triptych.status import rpc_errors
from triptych.v1 import router_pb2
from triptych.v1.types_pb2 import ContentPart, ImageRef

SAY = "Grün: 12 €"
IMAGE_TOKEN = 1022


async def complete(bench: Bench, prompt: Any = "Once upon", **fields: Any) -> Any:
    return await bench.http.post("/v1/completions", json={"prompt": prompt, **fields})


async def test_openai_client_completes_a_text(bench: Bench) -> None:
    bench.say(SAY)
    async with client_of(bench) as client:
        answer = await client.completions.create(model="triptych-demo", prompt="Once <|im_end|>", n=2, max_tokens=40)
        stream = await client.completions.create(model="triptych-demo", prompt="Once", stream=True, max_tokens=40)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert [(choice.text, choice.index, choice.finish_reason) for choice in answer.choices] == [
        (SAY, 0, "stop"),
        (SAY, 1, "stop"),
    ]
    assert (streamed, answer.object) == (SAY, "text_completion")
    prompt = list(bench.fleet.requests("decode")[0].prompt.token_ids)
    assert all(token < 1010 for token in prompt) and TOKENIZER.decode(prompt) == "Once <|im_end|>"


async def test_prompts_may_be_tokens_and_the_limit_is_openais(bench: Bench) -> None:
    for prompt in ([5, 6, 7], [[5, 6, 7]]):
        assert (await complete(bench, prompt)).status_code == 200
    asked = bench.fleet.requests("decode")
    assert [(list(each.prompt.token_ids), each.sampling.max_tokens) for each in asked] == [([5, 6, 7], 16)] * 2


async def test_log_probabilities_in_the_older_form(bench: Bench) -> None:
    bench.say(SAY)
    whole = (await complete(bench, logprobs=2, max_tokens=40)).json()["choices"][0]["logprobs"]
    events = events_of((await complete(bench, logprobs=2, max_tokens=40, stream=True)).text)
    chunks = [json.loads(event)["choices"][0]["logprobs"] for event in events[:-1]]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [value for chunk in chunks if chunk for value in chunk[name]] == whole[name]
    assert len(whole["tokens"]) == len(whole["top_logprobs"]) == len(bench.fleet.script.answer)
    assert whole["text_offset"][:2] == [0, len(whole["tokens"][0])]


BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": "a", "echo": True}, "echo"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 3}, "best_of"),
    ({"prompt": "a", "logprobs": 6}, "logprobs"),
    ({"prompt": [IMAGE_TOKEN]}, "prompt"),
    ({"prompt": "word " * 1_000_000}, "prompt"),
    ({"prompt": [5] * 5000}, "prompt"),
    ({"prompt": "a", "max_tokens": 100_000}, "max_tokens"),
]


async def test_bad_completions_are_named(bench: Bench) -> None:
    answers = [await bench.http.post("/v1/completions", json=body) for body, _ in BAD_BODIES]
    assert [answer.json()["error"]["param"] for answer in answers] == [param for _, param in BAD_BODIES]
    assert {answer.status_code for answer in answers} == {400}


def raw(*token_ids: int, images: int = 0) -> router_pb2.GenerateRequest:
    refs = [ImageRef(digest=file_digest(png()))] * images
    return router_pb2.GenerateRequest(prompt=router_pb2.RawPrompt(token_ids=token_ids, images=refs))


async def test_slots_and_pictures_of_a_raw_prompt_must_agree(bench: Bench) -> None:
    await put(bench, png())
    for slots, images in ((1, 2), (2, 1), (0, 1)):
        with pytest.raises(InvalidArgumentError, match=f"{slots} image markers .* {images} images"):
            await generate(bench, raw(5, *[IMAGE_TOKEN] * slots, images=images))
    usage = (await generate(bench, raw(5, IMAGE_TOKEN, 6, images=1)))[-1].finished.usage
    assert (usage.images, usage.prompt_tokens) == (1, 2 + usage.visual_tokens)


async def test_a_text_has_no_slots(bench: Bench) -> None:
    await put(bench, png())
    prompt = router_pb2.RawPrompt(text="<|image_pad|>", images=[ImageRef(digest=file_digest(png()))])
    with pytest.raises(InvalidArgumentError, match="0 image markers"):
        await generate(bench, router_pb2.GenerateRequest(prompt=prompt))


async def test_tokens_are_those_of_the_prompt(bench: Bench) -> None:
    content = [image_part(png()), {"type": "text", "text": "a"}]
    counted = await bench.http.post("/tokenize", json={"messages": [{"role": "user", "content": content}]})
    await bench.chat(content)
    tokens = list(bench.fleet.requests("decode")[0].prompt.token_ids)
    assert counted.json() == {"count": len(tokens), "max_model_len": 4096, "tokens": tokens}
    asked = router_pb2.TokenizeRequest(request=request(image(png()), ContentPart(text="a")))
    with rpc_errors():
        found = await bench.stub.Tokenize(asked)
    assert (list(found.token_ids), found.block_size) == (tokens, 16)
    assert list(found.images) == list(bench.fleet.requests("decode")[0].prompt.images)


async def test_texts_go_to_tokens_and_back(bench: Bench) -> None:
    tokens = (await bench.http.post("/tokenize", json={"prompt": "<|im_end|> ünï"})).json()["tokens"]
    back = await bench.http.post("/detokenize", json={"tokens": [*tokens, 10**6]})
    assert back.json() == {"prompt": "<|im_end|> ünï"}
    asked = router_pb2.DetokenizeRequest(token_ids=tokens)
    assert (await bench.stub.Detokenize(asked)).text == "<|im_end|> ünï"
    with pytest.raises(InvalidArgumentError), rpc_errors():
        await bench.stub.Detokenize(router_pb2.DetokenizeRequest(token_ids=[1] * (MAX_DETOKENIZED + 1)))
    both = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    refused = [await bench.http.post("/tokenize", json=body) for body in ({}, both)]
    assert [answer.status_code for answer in refused] == [400, 400]


async def test_a_model_is_found_by_its_name(bench: Bench) -> None:
    async with client_of(bench) as client:
        assert (await client.models.retrieve("triptych-demo")).id == "triptych-demo"
    answer = await bench.http.get("/v1/models/other/one")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_every_response_names_its_request(bench: Bench) -> None:
    bad = {"x-request-id": "a b"}
    answers = [
        await bench.http.get("/v1/models", headers={"x-request-id": "mine"}),
        await bench.http.get("/nothing", headers={"x-request-id": "mine"}),
        await bench.http.post("/v1/completions", json={}, headers={"x-request-id": "mine"}),
        await bench.http.get("/healthz", headers=bad),
    ]
    assert [answer.headers.get_list("x-request-id") for answer in answers[:3]] == [["mine"]] * 3
    assert len(answers[3].headers["x-request-id"]) == 32
