"""`python -m services.prefill`: one prefill worker."""

from __future__ import annotations

import sys

from common.rpc.main import service_main
from common.worker.parts import load_parts
from common.worker.process import WorkerProcess
from common.worker.stage import Site
from services.prefill.delivery import PushDeliveries
from services.prefill.settings import PrefillSettings
from services.prefill.stage import PrefillStage
from triptych.v1 import worker_pb2


def build(settings: PrefillSettings) -> WorkerProcess:
    """The process, not started."""
    return WorkerProcess(
        lambda: load_parts(settings, step_tokens=settings.step_tokens, step_sequences=0),
        lambda site: {worker_pb2.WORKER_ROLE_PREFILL: stage(site, settings)},
    )


def stage(site: Site, settings: PrefillSettings) -> PrefillStage:
    """Prefill that pushes to decode workers elsewhere."""
    return PrefillStage(site, settings, PushDeliveries(site.parts, site.channels), serves_kv=True)


if __name__ == "__main__":
    sys.exit(service_main("prefill", PrefillSettings, build))
