"""Prefill and decode with mutual TLS between them: KV goes encrypted, and nobody else is let in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.certificates import issue
from tests.checkpoints import CheckpointCache
from tests.workers import running_pair
from triptych.channel import open_channel
from triptych.errors import UnavailableError
from triptych.status import rpc_errors
from triptych.tls import Tls
from triptych.v1 import types_pb2, worker_pb2, worker_pb2_grpc


async def test_kv_crosses_between_workers_that_show_certificates(
    checkpoints: CheckpointCache, valkey_url: str, tmp_path: Path
) -> None:
    identity = issue(tmp_path / "ours")
    settings: dict[str, Any] = {**identity.settings, "kv_transport": "grpc"}
    model = checkpoints.get("qwen2_vl")
    async with running_pair(model, valkey_url, settings, settings, tls=identity.client) as pair:
        prompt = pair.prompt(list(range(50, 90)))
        answer = await pair.ask(prompt, types_pb2.SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
        assert answer.account is not None and answer.account.transfer_bytes > 0
        address = (await worker_pb2_grpc.WorkerServiceStub(pair.channels["decode"]).GetInfo(ask())).info.address
        for tls in (None, Tls(identity.ca)):
            async with open_channel(address, tls) as channel:
                with pytest.raises(UnavailableError), rpc_errors():
                    await worker_pb2_grpc.WorkerServiceStub(channel).GetInfo(ask(), timeout=20)


def ask() -> worker_pb2.GetInfoRequest:
    return worker_pb2.GetInfoRequest()
