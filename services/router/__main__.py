"""`python -m services.router`: the front door of a cluster."""

from __future__ import annotations

import sys

from common.rpc.lifecycle import Service
from common.rpc.main import service_main
from services.router.settings import RouterSettings
from services.router.torch_free import block_torch


def build(settings: RouterSettings) -> Service:
    """The process, not started."""
    block_torch()
    from services.router.service import RouterProcess  # noqa: PLC0415 - imports transformers, which looks for torch

    return RouterProcess(settings)


if __name__ == "__main__":
    sys.exit(service_main("router", RouterSettings, build))
