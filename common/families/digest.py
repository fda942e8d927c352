"""Full BLAKE3-256 digests over length-prefixed fields, for the fingerprints of weights and preprocessing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from blake3 import blake3


def digest_fields(domain: str, fields: Iterable[bytes]) -> str:
    """64 hex digits over `domain` (a tag that ends in a version) and `fields`.

    Each field is preceded by its length, so that no two lists of fields give the same bytes.
    """
    hasher = blake3()
    for field in (domain.encode(), *fields):
        hasher.update(len(field).to_bytes(8, "little"))
        hasher.update(field)
    return hasher.hexdigest()


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """One spelling of a JSON object: sorted keys, no spaces, floats as Python repeats them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
