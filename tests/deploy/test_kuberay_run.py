"""The RayService of the chart, run here as its operator would run it, and the head killed."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import helm_python
import pytest
import torch
from redis.asyncio import Redis

from common.models.tower import Tower
from tests.deploy.charts import CHART, merged, profile, render
from tests.deploy.operator import Operator, operator
from tests.deploy.pods import HOST, ROOT, LocalPod, Place
from tests.encoder_process import encode
from tests.encoding import upload
from tests.pictures import noise
from triptych.channel import open_channel
from triptych.v1 import encoder_pb2, worker_pb2, worker_pb2_grpc

pytestmark = [pytest.mark.cluster, pytest.mark.deploy, pytest.mark.timeout(900)]
MODEL = ROOT / "models" / "triptych-demo"
SEEDS = itertools.count(7000)
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def tower() -> Tower:
    return Tower.load(MODEL, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def running(valkey_url: str) -> Iterator[Operator]:
    with helm_python.Chart.load(CHART) as chart:
        manifests = render(chart, merged(profile("cpu"), {"encoder": {"kuberay": {"enabled": True}}}))
    (service,) = (each for each in manifests if each["kind"] == "RayService")
    with operator(service, Place(valkey_url, MODEL)) as started:
        started.deploy()
        yield started


@pytest.fixture
async def channel(running: Operator) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(f"{HOST}:{running.nodes['front'].ports['50051']}") as channel:
        yield channel


async def new_picture(channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> encoder_pb2.EncodeResponse:
    one = await upload(redis, tower, noise(90, 70, seed=next(SEEDS)))
    (response,) = await encode(channel, one.message)
    return response


async def instance(channel: grpc.aio.Channel) -> str:
    info = (await worker_pb2_grpc.WorkerServiceStub(channel).GetInfo(worker_pb2.GetInfoRequest())).info
    return str(info.instance_id)


def pod(running: Operator, name: str) -> LocalPod:
    return running.head if name == "head" else running.nodes[name]


@pytest.mark.parametrize("name", ["head", "front", "towers"])
@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_its_probes_pass_in_the_end(running: Operator, probe: str, name: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not pod(running, name).passes(probe):
        assert time.monotonic() < deadline, pod(running, name).last_words()
        time.sleep(0.5)


def test_metrics_are_where_the_monitor_looks(running: Operator) -> None:
    assert running.nodes["front"].serves_metrics()


async def test_a_picture_is_encoded(running: Operator, channel: grpc.aio.Channel, redis: Redis, tower: Tower) -> None:
    assert (await new_picture(channel, redis, tower)).outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED


async def test_front_and_tower_go_on_without_a_head_and_are_found_again(
    running: Operator, channel: grpc.aio.Channel, redis: Redis, tower: Tower
) -> None:
    """What Ray's state in Redis is for."""
    before = await instance(channel)
    running.head.close()
    assert (await new_picture(channel, redis, tower)).outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED
    running.restart_head()
    assert await instance(channel) == before
    assert (await new_picture(channel, redis, tower)).outcome == encoder_pb2.ENCODE_OUTCOME_COMPUTED
