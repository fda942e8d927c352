"""What is asked of an encoder process, which the module makes, and of its Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from tests.encoder_process import Encoder
from triptych.channel import open_channel


@pytest.fixture
async def channel(encoder: Encoder) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(encoder.address) as channel:
        yield channel
