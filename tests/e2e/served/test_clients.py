"""What clients do to a real cluster beside asking nicely: the same names twice at once, and many large pictures."""

from __future__ import annotations

import base64
import http.client
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from PIL import Image as Pillow

from tests.pictures import noise
from triptych import Client, Conversation, Image, user
from triptych.channel import MAX_MESSAGE_BYTES
from triptych.cli.cluster import LocalCluster
from triptych.cli.script import FOLDER
from triptych.conversation import ImageReferences

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
# Questions with one right answer each, long enough that the requests overlap.
ANSWERS = {"sign.png": ("Which word is written?", "moon"), "number.png": ("Which digit is written?", "7")}
SIDE = 1150


def bmp(picture: Pillow.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "BMP")
    return file.getvalue()


@pytest.fixture(scope="module")
def large() -> list[bytes]:
    """Five pictures, each below every limit, together above that of one message."""
    files = [bmp(noise(SIDE, SIDE, seed)) for seed in range(5)]
    assert sum(map(len, files)) > MAX_MESSAGE_BYTES > max(map(len, files))
    return files


@pytest.fixture
def web(served: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.http_url, timeout=120) as opened:
        yield opened


def test_one_request_id_twice_at_once(client: Client) -> None:
    def ask(name: str) -> str:
        question = user(Image.from_file(FOLDER / name), ANSWERS[name][0])
        return client.generate(question, temperature=0.0, request_id="same", session_id="same").answer().text.strip()

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, [*ANSWERS] * 4))
    assert texts == [answer for _, answer in ANSWERS.values()] * 4


@pytest.mark.parametrize("header", ["x-request-id", "traceparent"])
def test_one_name_in_the_headers_twice_at_once(web: httpx.Client, header: str) -> None:
    def ask(name: str) -> str:
        question, _ = ANSWERS[name]
        url = f"data:image/png;base64,{base64.b64encode((FOLDER / name).read_bytes()).decode()}"
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
        body = {"messages": [{"role": "user", "content": parts}], "temperature": 0}
        trace = {header: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        text: str = web.post("/v1/chat/completions", json=body, headers=trace).json()["choices"][0]["message"][
            "content"
        ]
        return text.strip()

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(ask, [*ANSWERS] * 2))
    assert texts == [answer for _, answer in ANSWERS.values()] * 2


def test_pictures_that_together_exceed_a_message_pass_one_by_one(client: Client, large: list[bytes]) -> None:
    """J02."""
    pictures = [Image.from_bytes(data) for data in large]
    answer = client.generate([*pictures, "How many shapes are there?"], max_tokens=2).answer()
    assert (answer.usage.images, answer.usage.embedding_misses) == (5, 5)


def test_the_same_pictures_pass_over_http(web: httpx.Client, large: list[bytes]) -> None:
    urls = [f"data:image/bmp;base64,{base64.b64encode(data).decode()}" for data in large]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}], "max_tokens": 2}
    answer = web.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200 and answer.json()["usage"]["triptych"]["images"] == 5


def test_a_body_above_the_limit_is_refused_with_the_limit(served: LocalCluster) -> None:
    """J02."""
    connection = http.client.HTTPConnection(served.http_url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("content-length", str(80 * 2**20))
    connection.endheaders(b"{")
    answer = connection.getresponse()
    assert answer.status == 413 and str(64 * 2**20) in answer.read().decode()
    connection.close()


def test_references_spare_visual_tokens(client: Client) -> None:
    talk = Conversation(client, ImageReferences(describe=False), temperature=0.0, max_tokens=20)
    pictures = [Image.from_file(FOLDER / name) for name in ("sign.png", "number.png")]
    visual = [talk.ask(picture, "What is it?").answer().usage.visual_tokens for picture in pictures]
    history = client.generate([user(*pictures, "What?")], max_tokens=1).answer().usage.visual_tokens
    assert sum(visual) == history and max(visual) < history


def test_a_conversation_reads_its_last_turn_from_the_cache(client: Client) -> None:
    talk = Conversation(client, temperature=0.0, max_tokens=20)
    first = talk.ask(Image.from_file(FOLDER / "sign.png"), "Which word is written?").answer()
    second = talk.ask("What shape is yellow?").answer()
    assert (first.text.strip(), second.text.strip()) == ("moon", "star")
    assert second.usage.cache_read_tokens >= first.usage.prompt_tokens // 16 * 16
