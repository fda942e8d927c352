"""Settings of the router."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import ByteSize, Field, field_validator
from pydantic_settings import SettingsConfigDict

from common.settings import Port, ServiceSettings
from services.router.remote.policy import parse_domain

PositiveInt = Annotated[int, Field(ge=1)]


class RouterSettings(ServiceSettings):
    """The front door of a cluster; holds no weights."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_ROUTER_")

    http_port: Port = Field(8000, description="port of the OpenAI API; 0 picks a free one")
    context_length: PositiveInt | None = Field(None, description="longest prompt plus answer; unset: the model's")
    default_max_tokens: PositiveInt = Field(1024, description="longest answer when a request names no max_tokens")
    max_images: Annotated[int, Field(ge=0)] = Field(16, description="pictures in one request")
    max_image_size: ByteSize = Field(ByteSize(20 * 2**20), description="largest file of one picture, e.g. 20MiB")
    max_image_pixels: int = Field(
        40_000_000, ge=1, le=64_000_000, description="pixels of one picture; decoding takes 4 to 12 bytes for each"
    )
    max_body_size: ByteSize = Field(ByteSize(64 * 2**20), description="largest HTTP request body, e.g. 64MiB")
    http_client_ca: Path | None = Field(None, description="HTTP callers must show a certificate that these CAs signed")
    keys_file: Path | None = Field(None, description="TOML file of API keys and tenants; unset: everybody may ask")
    share_across_tenants: bool = Field(False, description="tenants use each other's pictures, embeddings and KV")
    image_domains: list[str] = Field(
        default_factory=list,
        description="hosts whose http(s) images are fetched: name, *.name, either with :port; none: no URL is fetched",
    )
    image_private_networks: list[str] = Field(
        default_factory=list, description="networks that listed hosts may resolve to although they are not public"
    )
    image_ca: Path | None = Field(None, description="CAs trusted for https images besides the public ones")
    image_fetch_timeout_s: float = Field(10.0, gt=0, description="seconds for one remote image, redirects included")
    max_fetching_images: PositiveInt = Field(8, description="remote images that are fetched at the same time")
    max_incoming: ByteSize = Field(
        ByteSize(512 * 2**20),
        description="bytes of bodies and uploads, of all callers, received at the same time",
    )
    upload_timeout_s: float = Field(
        60.0, gt=0, description="seconds in which HTTP headers, a body or an upload must arrive"
    )
    send_timeout_s: float = Field(60.0, gt=0, description="seconds that a client may take nothing of its answer")
    max_http_connections: PositiveInt = Field(1000, description="HTTP connections at the same time; more are closed")
    request_timeout_s: float = Field(600.0, gt=0, description="seconds that one answer may take at most")
    max_attempts: PositiveInt = Field(3, description="workers tried for one request, the first included")
    quarantine_s: float = Field(300.0, gt=0, description="seconds that a request is refused over which workers died")
    max_queued: PositiveInt = Field(256, description="requests of one tenant that may wait for a free place")
    overcommit: float = Field(
        2.0, gt=0, description="how many times decode's KV may be promised; few answers become as long as they may"
    )
    cached_blocks: PositiveInt = Field(
        500_000, description="cached KV blocks of all workers that are known here, 130 bytes each; more is not harmful"
    )
    max_decoding_images: PositiveInt = Field(2, description="uploads whose pixels are decoded at the same time")
    recent_uploads: ByteSize = Field(
        ByteSize(64 * 2**20), description="memory for files uploaded lately; they answer for Redis while it is down"
    )

    history: ByteSize = Field(
        ByteSize(64 * 2**20), description="memory for earlier requests, which tells where a prompt diverged and why"
    )

    @field_validator("image_domains")
    @classmethod
    def _are_domains(cls, value: list[str]) -> list[str]:
        for domain in value:
            parse_domain(domain)
        return value

    @field_validator("image_private_networks")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        for network in value:
            ip_network(network)
        return value
