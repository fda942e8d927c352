"""A container engine of the tests' own: started by hand in a folder, and stopped without a trace."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.firewall import Firewall, is_owned

# The machine's own, by path: another client or wrapper may come first on the PATH.
DAEMON, CLIENT = "/usr/sbin/dockerd", "/usr/bin/docker"
PACKAGES = {
    DAEMON: "docker.io",
    CLIENT: "docker.io",
    "/usr/sbin/iptables": "iptables",
    "/usr/bin/mmdebstrap": "mmdebstrap",
}
# A folder named here keeps images from one run to the next; without it every run builds all of them anew.
KEPT = "TRIPTYCH_DEPLOY_CACHE"
MOUNTS = Path("/proc/self/mounts")
START_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 60.0


def install() -> str | None:
    """Debian's packages that are missing; a sentence when they cannot be had."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "a container engine is started as root on Debian only"
    missing = {package for file, package in PACKAGES.items() if not Path(file).exists()}
    if missing:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "-qq", "update"], env=quiet, capture_output=True, check=False)
        command = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *sorted(missing)]
        subprocess.run(command, env=quiet, capture_output=True, check=False)
    absent = [file for file in PACKAGES if not Path(file).exists()]
    if absent:
        return f"not installed and not installable: {', '.join(absent)}"
    return "another container engine runs here" if is_owned() else None


class Engine:
    """One daemon; everything it writes is under `folder`, but images and containers are under `data`."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        self._data = data
        self._socket = folder / "docker.sock"
        self._log = folder / "dockerd.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """For clients: this engine, and no settings of whoever runs the tests."""
        given = {"DOCKER_HOST": f"unix://{self._socket}", "DOCKER_CONFIG": str(self.folder / "client")}
        return {**os.environ, **given, "DOCKER_BUILDKIT": "1"}

    def start(self) -> str | None:
        """Start and wait until it answers; a sentence when it does not."""
        (self.folder / "daemon.json").write_text("{}")
        places = {"data-root": self._data, "exec-root": self.folder / "exec", "pidfile": self.folder / "pid"}
        places["config-file"] = self.folder / "daemon.json"
        command = [DAEMON, "-H", f"unix://{self._socket}", "--bridge", "none"]
        command += [f"--{option}={value}" for option, value in places.items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.run("info").returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                return f"the container engine does not start: {self._log.read_text().splitlines()[-1:]}"
            time.sleep(0.2)
        return None

    def stop(self) -> None:
        """SIGTERM, which ends its containers and its containerd, too. A namespace stays mounted."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_TIMEOUT_S)
        for mounted in re.findall(rf"^\S+ ({re.escape(str(self.folder))}\S*) ", MOUNTS.read_text(), re.MULTILINE):
            subprocess.run(["umount", mounted], check=True)

    def run(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """`docker ...`, whatever its status."""
        command = [CLIENT, *arguments]
        return subprocess.run(command, env=self.environment, input=given, capture_output=True, text=True, check=False)

    def docker(self, *arguments: str, given: str | None = None) -> str:
        """Standard output of `docker ...`, which has to succeed."""
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {(done.stdout + done.stderr)[-3000:]}"
        return done.stdout.strip()


@contextmanager
def running_engine() -> Iterator[Engine | str]:
    """An engine, or why there is none."""
    reason = install()
    if reason is not None:
        yield reason
        return
    firewall = Firewall()
    # Sockets need short paths, and images more room than a /tmp in memory has.
    folder = Path(tempfile.mkdtemp(prefix="triptych-deploy-", dir="/var/tmp"))
    engine = Engine(folder, Path(os.environ.get(KEPT) or folder / "data"))
    try:
        reason = engine.start()
        yield engine if reason is None else reason
    finally:
        engine.stop()
        firewall.restore()
        shutil.rmtree(folder)
