"""Warnings that would come with every request."""

from __future__ import annotations

import logging

import pytest

from common.tracing.sparing import EVERY_S, SparingLog


def test_the_same_warning_comes_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = SparingLog(logging.getLogger("test"), lambda: now)
    for value in (1, 2, 3):
        log.warning("down: %d", value)
    log.warning("full")
    now = EVERY_S
    log.warning("down: %d", 4)
    assert caplog.messages == ["down: 1", "full", "down: 4", "the same was left out 2 times before"]
