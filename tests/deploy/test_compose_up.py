"""The compose file for real: images built, a cluster up, asked from outside, disturbed, gone without a trace.

Not among the tests that run by default: `make test-deploy`. The tests build on each other, from top to bottom.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.engine import Engine, running_engine
from tests.deploy.images import BASE, ROOT, TARGETS, build_all, size_bytes
from tests.deploy.stack import PROJECT, TAG, Stack
from tests.deploy.streams import ANSWER, ask, long_answers
from triptych import Client
from triptych.errors import UnauthenticatedError

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3000)]
log = logging.getLogger(__name__)
STREAMS = 20
SERVICES = ("redis", "encoder", "prefill", "decode", "router")
MB = 1_000_000
GROUPS = yaml.safe_load((ROOT / "helm" / "triptych" / "files" / "rules.yml").read_text())["groups"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with running_engine() as found:
        if isinstance(found, str):
            pytest.skip(found)
        yield found


@pytest.fixture(scope="module")
def images(engine: Engine) -> Engine:
    started = monotonic()
    build_all(engine, TAG)
    sizes = {target: size_bytes(engine, f"triptych-{target}:{TAG}") // MB for target in TARGETS}
    log.info("images in %.0f s: %s MB, base %d MB", monotonic() - started, sizes, size_bytes(engine, BASE) // MB)
    return engine


@pytest.fixture(scope="module")
def stack(images: Engine) -> Iterator[Stack]:
    started, stack = monotonic(), Stack(images)
    try:
        stack.up()
        log.info("up in %.0f s", monotonic() - started)
        log.info("first answer, %s, after %.0f s", ask(stack), monotonic() - started)
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "20")


def test_the_router_image_is_small(images: Engine) -> None:
    assert size_bytes(images, f"triptych-router:{TAG}") - size_bytes(images, BASE) < 250 * MB


@pytest.mark.parametrize("target", TARGETS)
def test_images_run_as_nobody_and_hold_no_build_tools(images: Engine, target: str) -> None:
    look = "id -u; command -v gcc cc make git || echo none"
    said = images.docker("run", "--rm", "--network", "none", f"triptych-{target}:{TAG}", "sh", "-c", look)
    assert said.split() == ["10001", "none"]


def test_only_the_encoder_image_has_ray_and_the_router_image_no_torch(images: Engine) -> None:
    look = "import importlib.util as u; print(*(name for name in ('torch', 'ray') if u.find_spec(name)))"
    found = {
        target: images.docker("run", "--rm", "--network", "none", f"triptych-{target}:{TAG}", "python", "-c", look)
        for target in TARGETS
    }
    assert found == {"router": "", "worker": "torch", "encoder": "torch ray"}


def test_answers_a_question_about_a_picture_over_grpc(stack: Stack) -> None:
    assert ask(stack) == ANSWER


def test_answers_over_http(stack: Stack) -> None:
    body = {"model": "triptych-demo", "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
    with_key = {"authorization": f"Bearer {stack.secrets.key}"}
    answer = httpx.post(f"http://{stack.http}/v1/chat/completions", json=body, headers=with_key, timeout=60)
    assert answer.json()["choices"][0]["message"]["content"] == "I am the Triptych demo model."


def test_nobody_is_answered_without_a_key(stack: Stack) -> None:
    assert httpx.get(f"http://{stack.http}/v1/models", timeout=60).status_code == 401
    with Client(stack.grpc) as client, pytest.raises(UnauthenticatedError):
        client.list_models()


def test_redis_wants_its_password(stack: Stack) -> None:
    ping = ("exec", f"{PROJECT}-redis-1", "redis-cli")
    assert "NOAUTH" in stack.engine.docker(*ping, "ping")
    assert stack.engine.docker(*ping, "-a", stack.secrets.password, "--no-auth-warning", "ping") == "PONG"


def test_the_doctor_finds_nothing_to_fix(stack: Stack) -> None:
    """From inside, where every worker and Redis can be asked."""
    redis = f"redis://:{stack.secrets.password}@redis:6379/0"
    command = ("triptych", "doctor", "--json", "--inside", "--api-key", stack.secrets.key, "--redis", redis)
    done = stack.engine.run("exec", f"{PROJECT}-router-1", *command)
    wrong = [each for each in json.loads(done.stdout) if each["level"] != "ok"]
    assert (done.returncode, wrong) == (0, [])


def test_prometheus_scrapes_every_process_and_has_the_rules(stack: Stack) -> None:
    def asked(what: str) -> Any:
        return httpx.get(f"http://{stack.prometheus}/api/v1/{what}", timeout=60).json()["data"]

    def up() -> bool:
        targets = asked("targets")["activeTargets"]
        return {each["labels"]["job"] for each in targets if each["health"] == "up"} == {*SERVICES} - {"redis"}

    stack.wait(up, "every target up")
    assert {group["name"] for group in asked("rules")["groups"]} == {group["name"] for group in GROUPS}


def test_only_the_router_and_prometheus_are_published(stack: Stack) -> None:
    listed = stack.engine.docker("ps", "--format", "{{.Names}} {{.Ports}}").splitlines()
    published = {line.split()[0] for line in listed if "->" in line}
    assert published == {f"{PROJECT}-router-1", f"{PROJECT}-prometheus-1"}


@pytest.mark.parametrize("service", ["redis", "encoder", "prefill", "decode"])
def test_only_the_router_has_a_way_out(stack: Stack, service: str) -> None:
    """Neither what a model says nor a library's curiosity leaves the network."""
    template = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}"
    networks = stack.engine.docker("inspect", "--format", template, f"{PROJECT}-{service}-1").split()
    internal = [stack.engine.docker("network", "inspect", "--format", "{{.Internal}}", name) for name in networks]
    assert internal == ["true"]


def test_services_that_are_up_before_redis_wait_for_it(stack: Stack) -> None:
    """L17: none of them ends for want of it."""
    names = [f"{PROJECT}-{service}-1" for service in SERVICES if service != "redis"]
    stack.engine.docker("stop", *names)
    stack.compose("stop", "redis")
    stack.engine.docker("start", *names)
    started = [stack.state(name)["StartedAt"] for name in names]

    def waiting(name: str) -> bool:
        logs = stack.engine.run("logs", name)
        return "waiting for Redis" in logs.stdout + logs.stderr

    stack.wait(lambda: all(map(waiting, names)), "all waiting for Redis")
    stack.compose("start", "redis")
    stack.wait_until_ready()
    assert ask(stack) == ANSWER
    assert [stack.state(name)["StartedAt"] for name in names] == started


def test_survives_a_restart_of_redis(stack: Stack) -> None:
    """L17."""
    stack.compose("restart", "redis")
    stack.wait_until_ready()
    assert ask(stack) == ANSWER


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_service_comes_back(stack: Stack, service: str) -> None:
    stack.kill(f"{PROJECT}-{service}-1")
    stack.wait_until_ready()
    assert ask(stack) == ANSWER


def test_decode_is_replaced_under_running_streams(stack: Stack) -> None:
    """One more, then the old one leaves: no stream breaks, and each says what it says undisturbed."""
    with ThreadPoolExecutor(STREAMS) as pool:
        expected = [stream.result() for stream in long_answers(stack, STREAMS, pool)]
        stack.up("--scale", "decode=2", "--no-recreate")
        streams = long_answers(stack, STREAMS, pool)
        stack.engine.docker("stop", "--time", "120", f"{PROJECT}-decode-1")
        assert [stream.result() for stream in streams] == expected
    assert stack.containers("decode") == [f"{PROJECT}-decode-2"]


def test_what_drained_ended_well(stack: Stack) -> None:
    assert stack.state(f"{PROJECT}-decode-1")["ExitCode"] == 0


def test_scales_back(stack: Stack) -> None:
    stack.engine.docker("rm", f"{PROJECT}-decode-1")
    stack.up("--scale", "decode=1", "--no-recreate")
    assert len(stack.containers("decode")) == 1 and ask(stack) == ANSWER


@pytest.mark.parametrize("service", ["encoder", "prefill", "router"])
def test_a_stopped_service_ends_well(stack: Stack, service: str) -> None:
    stack.compose("stop", service)
    assert stack.state(f"{PROJECT}-{service}-1")["ExitCode"] == 0


def test_goes_down_clean(stack: Stack) -> None:
    stack.compose("down", "--volumes")
    left = [stack.engine.docker(*words, "--quiet") for words in (("ps", "-a"), ("volume", "ls"))]
    networks = stack.engine.docker("network", "ls", "--format", "{{.Name}}").split()
    assert left == ["", ""] and not [name for name in networks if PROJECT in name]
