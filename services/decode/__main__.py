"""`python -m services.decode`: one decode worker."""

from __future__ import annotations

import sys

from common.rpc.main import service_main
from common.worker.parts import load_parts
from common.worker.process import WorkerProcess
from services.decode.settings import DecodeSettings
from services.decode.stage import DecodeStage
from triptych.v1 import worker_pb2


def build(settings: DecodeSettings) -> WorkerProcess:
    """The process, not started."""
    return WorkerProcess(
        lambda: load_parts(settings, step_tokens=1, step_sequences=settings.max_running),
        lambda site: {worker_pb2.WORKER_ROLE_DECODE: DecodeStage(site, settings)},
    )


if __name__ == "__main__":
    sys.exit(service_main("decode", DecodeSettings, build))
