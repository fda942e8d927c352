"""The images, built where no registry of images is reached: Debian's packages under the name of the real base."""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.deploy.engine import Engine

ROOT = Path(__file__).parents[2]
BASE, REDIS = "python:3.11-slim-bookworm", "redis:7.4-bookworm"
PROMETHEUS = "prom/prometheus:v2.53.4"
TARGETS = ("router", "worker", "encoder")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
# Fixed, because it is written into a base that may be kept.
WHEELS_PORT = 18777
PIP_SETTINGS = ("index-url", "timeout", "trusted-host", "proxy")


def pip_settings() -> dict[str, str]:
    """What pip is told on this machine, by its files and by its environment."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^(?:global|user|site|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))


def wheel_folder() -> Path | None:
    """A folder of this machine in which pip looks for wheels."""
    named = [Path(word) for word in pip_settings().get("find-links", "").split()]
    return next((folder for folder in named if folder.is_dir()), None)


@contextmanager
def served_wheels() -> Iterator[None]:
    """That folder on loopback, for builds, which see no file of the machine."""
    folder = wheel_folder()
    with ExitStack() as stack:
        if folder is not None:
            handler = functools.partial(_Quiet, directory=str(folder))
            server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", WHEELS_PORT), handler))
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        yield


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it)
        """Nothing."""


def pip_conf() -> str:
    """The same for pip inside the base."""
    settings = {name: value for name, value in pip_settings().items() if name in PIP_SETTINGS}
    settings["cert"] = str(AUTHORITIES)
    if wheel_folder() is not None:
        settings["find-links"] = f"http://127.0.0.1:{WHEELS_PORT}/"
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())


def build_base(engine: Engine) -> None:
    """Debian with Python and pip, like `python:3.11-slim-bookworm`. This machine's network settings stay inside it."""
    (engine.folder / "pip.conf").write_text(pip_conf())
    archive = engine.folder / "base.tar"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-pip,ca-certificates"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    command += [f"--customize-hook=copy-in {engine.folder / 'pip.conf'} /etc"]
    command += [f"--customize-hook=upload {AUTHORITIES} {AUTHORITIES}"]
    command += ['--customize-hook=ln -s python3 "$1/usr/bin/python"', "bookworm", str(archive)]
    done = subprocess.run([*command, "http://deb.debian.org/debian"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    engine.docker("import", "-c", path, str(archive), BASE)
    archive.unlink()


def build_redis(engine: Engine) -> None:
    """Debian's Redis, which has what the official image has in the places where compose looks for it."""
    _build_package(engine, REDIS, "redis-server")


def build_prometheus(engine: Engine) -> None:
    """Debian's Prometheus, started as the official image starts it."""
    files = ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
    _build_package(engine, PROMETHEUS, "prometheus", f"USER 65534\nENTRYPOINT {json.dumps(['prometheus', *files])}\n")


def _build_package(engine: Engine, image: str, package: str, more: str = "") -> None:
    install = f"apt-get -qq update && apt-get -qq install -y --no-install-recommends {package}"
    recipe = f"FROM {BASE}\nRUN {install} && rm -rf /var/lib/apt/lists\n{more}"
    engine.docker("build", "--network", "host", "-t", image, "-", given=recipe)


def build(engine: Engine, target: str, tag: str) -> None:
    """One of the three images by the project's recipe."""
    options = ["--network", "host", "--build-arg", "TORCH_INDEX=", "--target", target, "-t", f"triptych-{target}:{tag}"]
    engine.docker("build", *options, str(ROOT))


def build_all(engine: Engine, tag: str) -> None:
    """The three, and what they stand on if it is not there yet."""
    with served_wheels():
        for image, make in ((BASE, build_base), (REDIS, build_redis), (PROMETHEUS, build_prometheus)):
            if engine.run("image", "inspect", image).returncode != 0:
                make(engine)
        for target in TARGETS:
            build(engine, target, tag)


def size_bytes(engine: Engine, image: str) -> int:
    """All layers of an image."""
    return int(engine.docker("image", "inspect", "--format", "{{.Size}}", image))
