"""Cache scopes: who may share cached pictures, embeddings and KV."""

from __future__ import annotations

from triptych.digests import digest
from triptych.errors import InvalidArgumentError

_TAG = "triptych.scope.v1"


def cache_scope(tenant: str, salt: str | None) -> str:
    """64 hex digits naming the scope of an authenticated tenant and the caller's optional salt.

    Without a salt it is the tenant's common scope, which no salt leads to. InvalidArgumentError for an empty salt: a
    caller whose variable was empty would share by accident.
    """
    if salt is None:
        return digest(_TAG, tenant.encode())
    if not salt:
        raise InvalidArgumentError("cache_salt must not be empty; leave it out to share", param="cache_salt")
    return digest(_TAG, tenant.encode(), _encode(salt))


def _encode(salt: str) -> bytes:
    try:
        return salt.encode()
    except UnicodeEncodeError as exc:
        raise InvalidArgumentError("cache_salt is no valid Unicode text", param="cache_salt") from exc
