"""Who asks, and until when they wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from common.identity import cache_scope
from services.router.access.allowance import Allowance, unlimited
from triptych.errors import DeadlineExceededError, PermissionDeniedError

# All callers of a server without API keys are one tenant, which only their salts divide.
ANONYMOUS = ""


@dataclass(frozen=True)
class Caller:
    """`deadline` is on the event loop's clock, in seconds; `allowance` is what this request takes of the quota.

    `weight` is the tenant's share of a busy cluster, relative to other tenants.
    """

    tenant: str
    deadline: float
    shares: bool = False
    allowance: Allowance = field(default_factory=unlimited, compare=False)
    weight: float = 1.0
    operator: bool = False

    def scope(self, salt: str | None) -> str:
        """The cache scope of a request; InvalidArgumentError for an empty salt."""
        return cache_scope(ANONYMOUS if self.shares else self.tenant, salt)

    def check_operator(self) -> None:
        """PermissionDeniedError unless the caller runs this cluster, or everybody may do everything."""
        if not self.operator:
            raise PermissionDeniedError("only tenants that the keys file calls operators may do this")

    @asynccontextmanager
    async def in_time(self, what: str, within_s: float = math.inf) -> AsyncIterator[None]:
        """End the block at the deadline, or after `within_s`; DeadlineExceededError says that `what` came too late."""
        try:
            async with asyncio.timeout_at(min(self.deadline, asyncio.get_running_loop().time() + within_s)):
                yield
        except TimeoutError as error:
            raise DeadlineExceededError(f"{what} did not arrive in time") from error
