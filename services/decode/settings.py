"""Settings of a decode worker."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.worker.settings import WorkerSettings


class DecodeSettings(WorkerSettings):
    """`python -m services.decode`; environment prefix TRIPTYCH_DECODE_."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_DECODE_")

    max_running: Annotated[int, Field(ge=1)] = Field(64, description="sequences decoded together in one step")
    reservation_ttl_s: Annotated[float, Field(gt=0)] = Field(
        60.0, description="seconds that a reservation lives without a chunk of KV arriving"
    )
