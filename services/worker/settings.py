"""Settings of a process that serves several stages."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.decode.settings import DecodeSettings
from services.encoder.settings import EncoderSettings
from services.prefill.settings import PrefillSettings


class CombinedSettings(PrefillSettings, DecodeSettings):
    """`python -m services.worker`; environment prefix TRIPTYCH_WORKER_."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_WORKER_")

    encode: bool = Field(False, description="hold the vision tower too and serve all three stages: the monolith")

    def for_encoder(self) -> EncoderSettings:
        """Settings of the encode stage: what is shared from here, the rest from TRIPTYCH_ENCODER_ variables."""
        return EncoderSettings(
            model=self.model,
            redis_url=self.redis_url,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
        )
