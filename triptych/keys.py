"""API keys: how they look, and the digest by which a server knows them without holding them."""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "tk-"
RANDOM_BYTES = 32


def new_key() -> str:
    """A key nobody can guess: 256 random bits, so that one plain hash of it is as safe as a slow one."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def key_digest(key: str) -> str:
    """SHA-256 of the key's text in 64 hex digits, as keys files have it."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
