"""Keeps torch out of the router's process.

transformers loads torch wherever it is installed, for classes that the router never uses; in an environment shared with
workers that costs 200 MB and seconds.
"""

from __future__ import annotations

import os
import sys
from typing import cast


def block_torch() -> None:
    """Make torch look absent to everything imported from now on. Only for the router's own process."""
    # `None` is Python's documented way of saying "this import fails".
    cast("dict[str, object]", sys.modules)["torch"] = None
    # It advises to install torch; here its absence is the purpose.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
