"""Settings of a prefill worker."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ByteSize, Field
from pydantic_settings import SettingsConfigDict

from common.worker.settings import WorkerSettings


class PrefillSettings(WorkerSettings):
    """`python -m services.prefill`; environment prefix TRIPTYCH_PREFILL_."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_PREFILL_")

    step_tokens: Annotated[int, Field(ge=1)] = Field(
        512, description="prompt tokens computed in one step, over all requests"
    )
    pull: Literal["auto", "always", "never"] = Field(
        "auto", description="fetch a longer cached prefix from another worker; auto: when quicker than computing it"
    )
    embedding_memory: ByteSize = Field(
        ByteSize(64 * 2**20), description="embeddings kept in memory, in front of the store"
    )
