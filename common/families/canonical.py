"""One spelling of a JSON object, so that it can be hashed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """UTF-8 with sorted keys and no spaces; floats as Python repeats them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
