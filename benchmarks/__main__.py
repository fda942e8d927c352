"""`python -m benchmarks [NAME]...`: run measurements one after another; without a name, say which there are."""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys

import benchmarks


def names() -> list[str]:
    """Every measurement: the modules of this package that can be run."""
    return sorted(found.name for found in pkgutil.iter_modules(benchmarks.__path__) if not found.name.startswith("_"))


def describe(name: str) -> str:
    """The first line of a measurement's docstring."""
    return (importlib.import_module(f"benchmarks.{name}").__doc__ or "").partition("\n")[0]


def main(wanted: list[str]) -> int:
    """Run `wanted`; 2 when a name is unknown."""
    unknown = sorted(set(wanted) - set(names()))
    if unknown or not wanted:
        print(*(f"{name:20} {describe(name)}" for name in names()), sep="\n")
        return 2 if unknown else 0
    for name in wanted:
        sys.argv = [name]  # without our own arguments
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
