"""The entry point of every service: settings, log, traces, run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from common.rpc.lifecycle import Service, run_service
from common.settings import ServiceSettings
from common.tracing import configure_logging, start_tracing
from triptych.errors import ConfigError

Settings = TypeVar("Settings", bound=ServiceSettings)


def service_main(role: str, settings_type: type[Settings], build: Callable[[Settings], Service]) -> int:
    """Run one service with the process's arguments; the exit status."""
    try:
        settings = settings_type.load(sys.argv[1:])
    except ConfigError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2
    configure_logging(role, settings.log_level, settings.log_format)
    end_tracing = start_tracing(role, settings.otlp_endpoint, settings.trace_ratio)
    try:
        return run_service(lambda: build(settings))
    finally:
        end_tracing()
