"""`python -m services.worker`: prefill and decode in one process (E/PD), with `--encode true` the encoder too."""

from __future__ import annotations

import sys

from common.rpc.main import service_main
from common.worker.parts import load_parts
from common.worker.process import WorkerProcess
from common.worker.stage import Role, Site, Stage, Stages
from services.decode.stage import DecodeStage
from services.prefill.delivery import PushDeliveries
from services.prefill.stage import PrefillStage
from services.worker.encode import EncodeStage
from services.worker.handover import ReferenceDeliveries
from services.worker.settings import CombinedSettings
from triptych.v1 import worker_pb2


def build(settings: CombinedSettings) -> WorkerProcess:
    """The process, not started."""
    return WorkerProcess(
        lambda: load_parts(settings, step_tokens=settings.step_tokens, step_sequences=settings.max_running),
        lambda site: stages(site, settings),
    )


def stages(site: Site, settings: CombinedSettings) -> Stages:
    """The stages on one pool and one engine thread."""
    decode = DecodeStage(site, settings, computes_prompts=True)
    push = PushDeliveries(site.parts, site.channels)
    deliveries = ReferenceDeliveries(decode.engine, site.instance_id, push)
    found: dict[Role, Stage] = {
        worker_pb2.WORKER_ROLE_DECODE: decode,
        worker_pb2.WORKER_ROLE_PREFILL: PrefillStage(site, settings, deliveries, serves_kv=False),
    }
    if settings.encode:
        found[worker_pb2.WORKER_ROLE_ENCODER] = EncodeStage(settings.for_encoder(), site.redis, site.metrics)
    return found


if __name__ == "__main__":
    sys.exit(service_main("worker", CombinedSettings, build))
