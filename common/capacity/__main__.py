"""`python -m common.capacity`: what `triptych capacity` runs. JSON on stdout; a failure is one sentence on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError

from common.capacity.costs import Workload
from common.capacity.report import Question, make_plan
from triptych.errors import ConfigError, TriptychError


def main(argv: list[str]) -> int:
    """Print the plan that `argv` asks for; the exit status."""
    try:
        plan = make_plan(to_question(vars(_parser().parse_args(argv))))
    except TriptychError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(json.dumps(plan.figures(), indent=2))
    return 0


def to_question(flags: dict[str, object]) -> Question:
    """A question from flag values, those of `Workload` included; ConfigError for an unreadable size of memory."""
    given = {name: value for name, value in flags.items() if value is not None}
    work = {name: given.pop(name) for name in Workload.__dataclass_fields__ if name in given}
    if "device_memory" in given:
        given["device_memory"] = parse_size(str(given["device_memory"]))
    return Question(work=Workload(**work), **given)  # type: ignore[arg-type]


def parse_size(text: str) -> int:
    """Bytes of "80GiB", "24e9" or "4096"; ConfigError otherwise."""
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise ConfigError(f"{text!r} is no size of memory; write for example 80GiB", param="device_memory") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m common.capacity", description=__doc__)
    for name in ("model", "shape"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("step-tokens", "sequences", "context", "images", "encoder-tokens", "image-tokens", "block-size"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("device-memory", "dtype", "device"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--share", type=float)
    parser.add_argument("--attention", choices=("fused", "eager"))
    parser.add_argument("--measure", choices=("auto", "always", "never"))
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
