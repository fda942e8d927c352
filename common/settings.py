"""Settings of a service: typed, frozen, checked once; file < environment < flag.

A service subclasses `ServiceSettings`, or `RegisteredSettings` if it is in the registry, sets `env_prefix`, and calls
`load` in its `__main__`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from common.rpc.address import host_port, is_every_interface
from common.rpc.tls import ServerTls, client_tls, server_tls
from common.tracing.logs import LogFormat
from triptych.errors import ConfigError
from triptych.tls import Tls

Port = Annotated[int, Field(ge=0, le=65535)]
Dtype = Literal["float32", "bfloat16"]


class ServiceSettings(BaseSettings):
    """What every service is told. Subclasses add their own fields."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        cli_kebab_case=True,
        cli_hide_none_type=True,
        # A template's empty variable means that nothing was given.
        env_ignore_empty=True,
    )
    config_file: ClassVar[Path | None] = None

    model: Path = Field(description="Hugging Face checkpoint directory")
    model_name: str | None = Field(None, description="name that clients use; the directory's name when unset")
    redis_url: str = Field("redis://127.0.0.1:6379/0", description="Redis or Valkey, redis:// or rediss://")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(0, description="gRPC port; 0 picks a free one")
    advertise: str | None = Field(None, description="host name for other services; `host` when unset")
    tls_cert: Path | None = Field(None, description="PEM certificate chain shown to callers and, with tls-ca, to peers")
    tls_key: Path | None = Field(None, description="PEM private key of tls-cert")
    tls_client_ca: Path | None = Field(None, description="gRPC callers must show a certificate that these CAs signed")
    tls_ca: Path | None = Field(None, description="CAs of the other services; set: calls to them use TLS")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level logged")
    log_format: LogFormat = Field("text", description="lines for people, or json: one object a line")
    otlp_endpoint: str | None = Field(None, description="collector of traces, http://host:4317 (OTLP over gRPC)")
    trace_ratio: float = Field(1.0, ge=0, le=1, description="part of the requests whose trace is recorded")
    drain_grace_s: float = Field(30.0, ge=0, description="seconds that running work may take after SIGTERM")

    @field_validator("host", "advertise")
    @classmethod
    def _without_brackets(cls, value: str | None) -> str | None:
        """An IPv6 address may be written as it stands before a port."""
        return value[1:-1] if value and value.startswith("[") and value.endswith("]") else value

    @property
    def served_name(self) -> str:
        """Model name in requests and in the registry."""
        return self.model_name or self.model.resolve().name

    def address(self, port: int) -> str:
        """host:port for other services."""
        return host_port(self.advertise or self.host, port)

    @property
    def server_tls(self) -> ServerTls | None:
        """What the gRPC server shows and asks for; None is plain text. ConfigError when the files cannot be used."""
        return server_tls(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def client_tls(self) -> Tls | None:
        """What calls to other services use; None is plain text. ConfigError when the files cannot be used."""
        return client_tls(self.tls_ca, self.tls_cert, self.tls_key)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags arrive as init settings, then environment, then the file."""
        file = TomlConfigSettingsSource(settings_cls, toml_file=cls.config_file)
        return (init_settings, env_settings, file)

    @classmethod
    def load(cls, argv: list[str]) -> Self:
        """Read the three sources; ConfigError with one sentence for an unknown key or a bad value."""
        argv, file = _take_config_flag(argv)
        prefix = cls.model_config.get("env_prefix", "")
        _refuse_unknown_environment(cls, prefix)
        bound = type(cls.__name__, (cls,), {"config_file": file, "__module__": cls.__module__, "__doc__": cls.__doc__})
        source: CliSettingsSource[object] = CliSettingsSource(
            bound, cli_prog_name=f"python -m {prefix.lower()}", cli_parse_args=argv or []
        )
        try:
            return cast("Self", bound(**source()))
        except (ValidationError, SettingsError) as exc:
            raise ConfigError(_sentence(exc)) from exc


class RegisteredSettings(ServiceSettings):
    """Of a worker: it tells others where it is. `metrics_port` is not the gRPC port: Prometheus speaks HTTP."""

    metrics_port: Port | Literal["off"] = Field(
        0, description="HTTP port of /metrics; 0 picks a free one, which the log names; off: none"
    )

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if is_every_interface(self.advertise or self.host):
            raise ValueError("host is every interface, which is no address for others: set advertise to one of its own")
        return self


def _take_config_flag(argv: list[str]) -> tuple[list[str], Path | None]:
    if "--config" not in argv:
        return argv, None
    at = argv.index("--config")
    if at + 1 >= len(argv) or not Path(argv[at + 1]).is_file():
        raise ConfigError("--config needs the path of a readable TOML file")
    return argv[:at] + argv[at + 2 :], Path(argv[at + 1])


def _refuse_unknown_environment(cls: type[ServiceSettings], prefix: str) -> None:
    known = {f"{prefix}{name}".upper() for name in cls.model_fields}
    for name in os.environ:
        if prefix and name.startswith(prefix.upper()) and name not in known:
            raise ConfigError(f"environment variable {name} is no setting of this service")


def _sentence(exc: ValidationError | SettingsError) -> str:
    if isinstance(exc, SettingsError):
        return str(exc)
    parts = [f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in exc.errors()]
    return "; ".join(parts)
