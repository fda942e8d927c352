"""`python -m services.router`: the front door of a cluster."""

from __future__ import annotations

import sys

from common.rpc.lifecycle import Service, run_service
from common.settings import configure_logging
from services.router.settings import RouterSettings
from services.router.torch_free import block_torch


def build() -> Service:
    """The process as its flags, environment and file say."""
    settings = RouterSettings.load(sys.argv[1:])
    configure_logging("router", settings.log_level)
    block_torch()
    from services.router.service import RouterProcess  # noqa: PLC0415 - imports transformers, which looks for torch

    return RouterProcess(settings)


if __name__ == "__main__":
    sys.exit(run_service(build))
