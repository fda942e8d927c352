"""Settings of the router."""

from __future__ import annotations

from typing import Annotated

from pydantic import ByteSize, Field
from pydantic_settings import SettingsConfigDict

from common.settings import Port, ServiceSettings

PositiveInt = Annotated[int, Field(ge=1)]


class RouterSettings(ServiceSettings):
    """The front door of a cluster; holds no weights."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_ROUTER_")

    http_port: Port = Field(8000, description="port of the OpenAI API; 0 picks a free one")
    context_length: PositiveInt | None = Field(None, description="longest prompt plus answer; unset: the model's")
    default_max_tokens: PositiveInt = Field(1024, description="longest answer when a request names no max_tokens")
    max_images: Annotated[int, Field(ge=0)] = Field(16, description="pictures in one request")
    max_image_size: ByteSize = Field(ByteSize(20 * 2**20), description="largest file of one picture, e.g. 20MiB")
    max_body_size: ByteSize = Field(ByteSize(64 * 2**20), description="largest HTTP request body, e.g. 64MiB")
    request_timeout_s: float = Field(600.0, gt=0, description="seconds that one answer may take at most")
    max_decoding_images: PositiveInt = Field(2, description="uploads whose pixels are decoded at the same time")
    recent_uploads: ByteSize = Field(
        ByteSize(64 * 2**20), description="memory for files uploaded lately; they answer for Redis while it is down"
    )
