"""`python -m services.encoder`: the front of an encoder fleet."""

from __future__ import annotations

import sys

from common.rpc.main import service_main
from services.encoder.fleet import Fleet
from services.encoder.own import OwnReplicas
from services.encoder.process import EncoderProcess
from services.encoder.settings import EncoderSettings


def build(settings: EncoderSettings) -> EncoderProcess:
    """The front over replicas of its own."""
    return EncoderProcess(settings, Fleet(OwnReplicas(settings)))


if __name__ == "__main__":
    sys.exit(service_main("encoder", EncoderSettings, build))
