"""From a Redis URL to a pool of connections: plain or TLS, with ACL user and database, one server or Sentinel.

    redis://[user:password@]host[:port][/database]
    rediss://...?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE
    redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/database]
    rediss+sentinel://...

User and password are those of the data servers; sentinels are asked without.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from triptych.errors import ConfigError

TIMEOUT_S = 2.0
MAX_CONNECTIONS = 64
SENTINEL_PORT = 26379
_FILES = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_OPTIONS = _FILES | {"ssl_check_hostname"}


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Waits for a free connection like every pool here, and closes the connections to the sentinels, too."""

    async def aclose(self) -> None:
        await super().aclose()
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def open_pool(url: str) -> ConnectionPool:
    """A pool that connects lazily. ConfigError when the URL makes no sense; it never repeats the password.

    No retries: redis-py's default keeps a caller for ten seconds when the server hangs, and every caller here has a
    better plan than waiting. No socket timeout either: redis-py 8 implements it by `asyncio.wait_for`, which loses
    cancellations in Python 3.11; `store_errors` has the limit. Commands wait for a free connection when all are in use.
    """
    try:
        parts = urlsplit(url)
        _check_options(parts)
        if parts.scheme.endswith("+sentinel"):
            return _sentinel_pool(parts)
        return BlockingConnectionPool.from_url(url, timeout=TIMEOUT_S, **_common())
    except ValueError as exc:
        raise ConfigError("redis-url is not usable; it looks like redis://user:password@host:6379/0") from exc


def _common() -> dict[str, Any]:
    return {
        "max_connections": MAX_CONNECTIONS,
        "socket_timeout": None,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": _retry(),
        "protocol": 2,
    }


def _check_options(parts: SplitResult) -> None:
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ConfigError(f"redis-url has an unknown option {name!r}; known are {', '.join(sorted(_OPTIONS))}")
        if not parts.scheme.startswith("rediss"):
            raise ConfigError(f"redis-url has the option {name}, but its scheme is not rediss://")
        if name in _FILES and not Path(value).is_file():
            raise ConfigError(f"redis-url: there is no file for {name}")


def _sentinel_pool(parts: SplitResult) -> ConnectionPool:
    service, _, database = parts.path.strip("/").partition("/")
    if parts.scheme not in ("redis+sentinel", "rediss+sentinel") or not service:
        raise ConfigError("redis-url looks like redis+sentinel://host:26379/service/0")
    credentials, _, hosts = parts.netloc.rpartition("@")
    tls = _tls_options(dict(parse_qsl(parts.query))) if parts.scheme.startswith("rediss") else {}
    asking = {"socket_connect_timeout": TIMEOUT_S, "socket_timeout": TIMEOUT_S, "retry": _retry()}
    hosts_ports = [_host(host) for host in hosts.split(",")]
    manager = Sentinel(hosts_ports, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    user, _, password = credentials.partition(":")
    return _SentinelPool(  # type: ignore[no-untyped-call]
        service,
        manager,
        username=unquote(user) or None,
        password=unquote(password) or None,
        db=int(database or 0),
        timeout=TIMEOUT_S,
        **_common(),
        **tls,
    )


def _retry() -> Retry:
    return Retry(NoBackoff(), 0)


def _tls_options(query: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {"ssl": True, **query}
    if "ssl_check_hostname" in query:
        options["ssl_check_hostname"] = query["ssl_check_hostname"].lower() in ("1", "true", "yes")
    return options


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ConfigError("redis-url names no sentinel")
    return parts.hostname, parts.port or SENTINEL_PORT
