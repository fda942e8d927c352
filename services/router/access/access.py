"""From an Authorization header to a caller: the one place where requests are authenticated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.router.access.allowance import Quotas
from services.router.access.quota import Limits
from services.router.access.tenants import Tenant, Tenants
from services.router.caller import ANONYMOUS, Caller
from triptych.errors import UnauthenticatedError

_SCHEME = "bearer"


class Access:
    """`tenants` gives the keys in force, None when everybody may ask; `share` lets tenants use each other's caches."""

    def __init__(self, tenants: Callable[[], Tenants | None], quotas: Quotas, share: bool = False) -> None:
        self._tenants, self._quotas, self._share = tenants, quotas, share

    def caller(self, authorization: str | None, timeout_s: float) -> Caller:
        """Who asks; `timeout_s` bounds the request. UnauthenticatedError without a key that is known."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        tenants = self._tenants()
        if tenants is None:
            allowance = self._quotas.allowance(ANONYMOUS, Limits())
            return Caller(ANONYMOUS, deadline, allowance=allowance, operator=True)
        name, tenant = _authenticate(tenants, authorization)
        shares, allowance = self._share and tenant.share, self._quotas.allowance(name, tenant.limits)
        return Caller(name, deadline, shares, allowance, tenant.weight, tenant.operator)


def _authenticate(tenants: Tenants, authorization: str | None) -> tuple[str, Tenant]:
    scheme, _, key = (authorization or "").strip().partition(" ")
    if scheme.lower() != _SCHEME or not key.strip():
        raise UnauthenticatedError("an API key is needed: Authorization: Bearer KEY", param="authorization")
    found = tenants.find(key.strip())
    if found is None:
        raise UnauthenticatedError("the API key is not known here", param="authorization")
    return found
