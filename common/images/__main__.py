"""Image ids for another program: `DIGEST HEX` lines on standard input, a JSON object of digest to id on its output."""

from __future__ import annotations

import json
import sys

from common.images import ImageLimits, decode_image
from triptych.errors import InvalidImageError


def main() -> None:
    """Pictures that cannot be read are left out."""
    ids = {}
    for line in sys.stdin:
        name, _, data = line.partition(" ")
        try:
            ids[name] = decode_image(bytes.fromhex(data), ImageLimits()).image_id
        except InvalidImageError:
            continue
    print(json.dumps(ids))


if __name__ == "__main__":
    main()
