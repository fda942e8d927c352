"""The keys file: which API keys belong to which tenant, and what each tenant may use."""

from __future__ import annotations

import hmac
import tomllib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.router.access.quota import Limits
from triptych.errors import ConfigError
from triptych.keys import key_digest

Limit = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Key(_Strict):
    """One API key by its digest; a tenant may have several, for example an old and a new one."""

    tenant: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Tenant(_Strict):
    """Limits as in `Limits`; `share` false keeps the tenant apart on a server that shares across tenants.

    `weight` is its share of a busy cluster, relative to other tenants. An operator may watch the cluster: its workers'
    addresses and load.
    """

    requests: Limit | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    images: Limit | None = None
    share: bool = True
    operator: bool = False
    weight: float = Field(default=1.0, gt=0)

    @property
    def limits(self) -> Limits:
        """What it may use."""
        return Limits(self.requests, self.requests_per_minute, self.tokens_per_minute, self.images)


class Tenants(_Strict):
    """A whole keys file."""

    keys: list[Key] = Field(min_length=1)
    tenants: dict[str, Tenant] = Field(default_factory=dict)

    def find(self, key: str) -> tuple[str, Tenant] | None:
        """Name and tenant of an API key. Takes equally long whichever key matches, or none."""
        digest, found = key_digest(key), None
        for known in self.keys:
            if hmac.compare_digest(known.sha256, digest):
                found = known.tenant
        return None if found is None else (found, self.tenants.get(found, Tenant()))


def parse_tenants(text: str) -> Tenants:
    """ConfigError with one sentence, which shows no value of the file: a key may stand where its digest belongs."""
    try:
        parsed = Tenants.model_validate(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"the keys file is wrong at {place}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the keys file is no TOML: {error}") from None
    if unknown := parsed.tenants.keys() - {key.tenant for key in parsed.keys}:
        raise ConfigError(f"the keys file has limits for {min(unknown)!r}, which has no key")
    return parsed
