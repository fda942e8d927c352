"""Settings of a decode worker."""

from __future__ import annotations

from typing import Annotated

from pydantic import ByteSize, Field
from pydantic_settings import SettingsConfigDict

from common.worker.settings import WorkerSettings


class DecodeSettings(WorkerSettings):
    """`python -m services.decode`; environment prefix TRIPTYCH_DECODE_."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_DECODE_")

    max_running: Annotated[int, Field(ge=1)] = Field(64, description="sequences decoded together in one step")
    watermark: Annotated[int, Field(ge=0)] = Field(
        4, description="KV blocks left free when a request is admitted, for those running to grow"
    )
    parking: ByteSize = Field(
        ByteSize(1 << 30), description="host memory for the KV of preempted requests, for example 8GiB"
    )
    reservation_ttl_s: Annotated[float, Field(gt=0)] = Field(
        60.0, description="seconds that a reservation lives without KV or a sign of life from prefill"
    )
