"""Deploys `services.encoder.hosted` on a Ray that runs already, as an operator would; ends with its standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

READY = "deployed"


def hosted_environment(**settings: str) -> dict[str, str]:
    """What all processes of that Ray must see: settings of front and replicas, and the token that lets a driver in."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64}
    return token | {f"TRIPTYCH_ENCODER_{name.upper()}": value for name, value in settings.items()}


@contextmanager
def hosted_encoder(ray_directory: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Such a process, with that environment."""
    command = [sys.executable, "-m", "tests.hosted_encoder", str(ray_directory)]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == READY
        yield
        process.communicate()
    assert process.returncode == 0


def main(ray_directory: str) -> None:
    """The application is this process's as long as its standard input is open."""
    # Not in the process that only starts this one.
    import ray
    from ray import serve

    from services.encoder.hosted import application

    ray.init("auto", _temp_dir=ray_directory, log_to_driver=False)
    serve.run(application({}), name="hosted", route_prefix=None)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    sys.stdin.read()
    serve.delete("hosted")


if __name__ == "__main__":
    main(sys.argv[1])
