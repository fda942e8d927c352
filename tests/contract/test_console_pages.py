"""What the console is made of, without a browser: its files, the known pictures, the map of a prompt, sessions."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from services.router.http.console import TYPES, Console
from tests.contract.router_bench import Bench, png
from tests.contract.test_openai_chat import image_part
from triptych.digests import file_digest


async def test_the_page_and_its_files_allow_nothing_from_elsewhere(bench: Bench) -> None:
    page = await bench.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    script = await bench.http.get("/console/app.js")
    for answer in (page, script):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "http" not in policy and "unsafe" not in policy


async def test_other_names_are_not_found(bench: Bench) -> None:
    for path in ("/console/none.js", "/console/..%2F__init__.py", "/console/"):
        assert (await bench.http.get(path)).status_code == 404


def test_every_file_has_a_type_and_names_no_other_host() -> None:
    for name, data in Console()._files.items():
        assert name[name.rindex(".") :] in TYPES
        assert b"http" not in data.replace(b'xmlns="http://www.w3.org/2000/svg"', b"")


async def test_known_pictures_are_listed_page_by_page(bench: Bench) -> None:
    files = [png(40, 40, color) for color in ("red", "blue")]
    for file in files:
        await bench.chat([image_part(file)])
    first = (await bench.http.get("/v1/images", params={"limit": 1})).json()
    rest = (await bench.http.get("/v1/images", params={"after": first["after"]})).json()
    names = [entry["digests"] for page in (first, rest) for entry in page["data"]]
    assert names == [[file_digest(file)] for file in reversed(files)]
    assert (first["has_more"], rest["has_more"]) == (True, False)


async def test_known_pictures_of_another_scope_are_not_shown(bench: Bench) -> None:
    await bench.chat([image_part(png())])
    assert (await bench.http.get("/v1/images", params={"cache_salt": "other"})).json()["data"] == []


@pytest.mark.parametrize(("param", "value"), [("limit", "many"), ("limit", "1001"), ("after", "x"), ("cache_salt", "")])
async def test_a_senseless_page_is_refused_by_the_name_of_the_parameter(bench: Bench, param: str, value: str) -> None:
    answer = await bench.http.get("/v1/images", params={param: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_the_map_of_a_prompt_comes_when_asked_for(bench: Bench) -> None:
    asked = (await bench.chat([image_part(png())], prompt_map=True)).json()["usage"]["triptych"]
    assert sum(run["tokens"] for run in asked["prompt_map"]) == asked["prompt_tokens"]
    pictures = [run for run in asked["prompt_map"] if run["image_id"]]
    assert sum(run["tokens"] for run in pictures) == asked["visual_tokens"] and all(run["encoded"] for run in pictures)
    plain = (await bench.chat([image_part(png())])).json()["usage"]["triptych"]
    assert "prompt_map" not in plain


async def test_a_picture_of_the_map_can_be_named_in_the_next_turn(bench: Bench) -> None:
    usage = (await bench.chat([image_part(png())], prompt_map=True)).json()["usage"]["triptych"]
    name = next(run["image_id"] for run in usage["prompt_map"] if run["image_id"])
    answer = await bench.chat([{"type": "image_url", "image_url": {"url": f"triptych:{name}"}}], prompt_map=True)
    assert answer.json()["usage"]["triptych"]["embedding_hits"] == 1


@pytest.mark.parametrize(
    ("path", "asked"),
    [("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}), ("completions", {"prompt": "hi"})],
)
@pytest.mark.parametrize("by_header", [False, True])
async def test_the_session_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, path: str, asked: dict[str, Any], by_header: bool
) -> None:
    caplog.set_level(logging.INFO)
    body, headers = (asked, {"x-session-id": "mine"}) if by_header else (asked | {"session_id": "mine"}, {})
    await bench.http.post(f"/v1/{path}", json=body, headers=headers)
    assert "session 'mine'" in caplog.text
