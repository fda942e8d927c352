"""`python -m services.encoder`: the front of an encoder fleet."""

from __future__ import annotations

import sys

from common.rpc.main import service_main
from services.encoder.process import EncoderProcess
from services.encoder.settings import EncoderSettings

if __name__ == "__main__":
    sys.exit(service_main("encoder", EncoderSettings, EncoderProcess))
