"""Fetching from a real web server: what is connected to, and what ends a fetch."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from ipaddress import IPv4Address, ip_address, ip_network

import pytest
import trustme

from services.router.remote.addresses import Address
from services.router.remote.connecting import CheckedBackend
from services.router.remote.fetching import MAX_REDIRECTS, Fetcher
from services.router.remote.policy import UrlPolicy, parse_domain
from services.router.remote.resolving import Resolver
from tests.web import Page, Site, serving
from triptych.errors import PayloadTooLargeError, RemoteImageError

NAMES = {
    "images.test": ["127.0.0.1"],
    "inside.test": ["10.0.0.1"],
    "mixed.test": ["127.0.0.1", "169.254.169.254"],
    "two.test": ["127.0.0.77", "127.0.0.1"],
}
MAX_BYTES = 100_000
Build = Callable[..., Fetcher]


class Names:
    """None of them exists outside: a fetch that works went to the address that was checked."""

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        return [ip_address(text) for text in NAMES[host]]

    def close(self) -> None:
        pass


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as site:
        yield site


@pytest.fixture
async def build() -> AsyncIterator[Build]:
    async with AsyncExitStack() as stack:

        def build(
            site: Site, timeout_s: float = 20.0, tls: ssl.SSLContext | None = None, opened: bool = True
        ) -> Fetcher:
            policy = UrlPolicy([parse_domain(f"*.test:{site.port}")])
            backend = CheckedBackend([ip_network("127.0.0.0/8")] if opened else [], Names())
            fetcher = Fetcher(policy, backend, tls or ssl.create_default_context(), MAX_BYTES, timeout_s)
            stack.push_async_callback(fetcher.close)
            return fetcher

        yield build


async def test_the_bytes_come_from_the_checked_address(site: Site, build: Build) -> None:
    site.pages["/a?b"] = Page(b"picture", headers={"last-modified": "yesterday"})
    fetched = await build(site).fetch(f"http://images.test:{site.port}/a?b", "url")
    assert (fetched.data, fetched.version.last_modified) == (b"picture", "yesterday")
    assert site.visits[0].headers["host"] == f"images.test:{site.port}"
    assert site.visits[0].headers["accept-encoding"] == "identity"


async def test_the_second_address_is_tried_when_the_first_is_dead(site: Site, build: Build) -> None:
    site.pages["/"] = Page(b"picture")
    assert (await build(site).fetch(f"http://two.test:{site.port}/", "url")).data == b"picture"


@pytest.mark.parametrize("host", ["inside.test", "mixed.test"])
async def test_a_name_that_leads_inside_is_never_connected_to(site: Site, build: Build, host: str) -> None:
    with pytest.raises(RemoteImageError, match="leads to an address"):
        await build(site).fetch(f"http://{host}:{site.port}/", "url")
    assert site.connections == 0


async def test_loopback_needs_to_be_opened(site: Site, build: Build) -> None:
    with pytest.raises(RemoteImageError, match="leads to an address"):
        await build(site, opened=False).fetch(f"http://images.test:{site.port}/", "url")
    assert site.connections == 0


async def test_a_redirect_inside_is_refused_before_it_is_followed(site: Site, build: Build) -> None:
    async with serving() as internal:
        for location in (f"http://127.0.0.1:{internal.port}/", f"http://inside.test:{site.port}/"):
            site.pages["/"] = Page(status=302, headers={"location": location})
            with pytest.raises(RemoteImageError):
                await build(site).fetch(f"http://images.test:{site.port}/", "url")
        assert internal.connections == 0


async def test_redirects_are_followed_up_to_a_bound(site: Site, build: Build) -> None:
    for hop in range(MAX_REDIRECTS + 2):
        site.pages[f"/{hop}"] = Page(status=307, headers={"location": f"/{hop + 1}"})
    site.pages[f"/{MAX_REDIRECTS + 2}"] = Page(b"picture")
    fetcher = build(site)
    assert (await fetcher.fetch(f"http://images.test:{site.port}/2", "url")).data == b"picture"
    with pytest.raises(RemoteImageError, match="redirects more than"):
        await fetcher.fetch(f"http://images.test:{site.port}/0", "url")


async def test_a_silent_server_costs_the_timeout(site: Site, build: Build) -> None:
    site.pages["/"] = Page(hang=True)
    fetcher = build(site, timeout_s=2.0)
    with pytest.raises(RemoteImageError, match="not delivered within") as caught:
        await fetcher.fetch(f"http://images.test:{site.port}/", "there")
    assert caught.value.param == "there"
    site.pages["/next"] = Page(b"picture")
    assert (await fetcher.fetch(f"http://images.test:{site.port}/next", "url")).data == b"picture"


async def test_a_body_without_end_is_cut_at_the_limit(site: Site, build: Build) -> None:
    site.pages["/"] = Page(length=False, endless=b"x" * 50_000)
    with pytest.raises(PayloadTooLargeError) as caught:
        await build(site).fetch(f"http://images.test:{site.port}/", "there")
    # The rest are buffers of the kernel and of the server.
    assert (caught.value.param, site.sent < 50 * 2**20) == ("there", True)


async def test_an_announced_size_over_the_limit_is_not_read(site: Site, build: Build) -> None:
    site.pages["/"] = Page(length=False, headers={"content-length": str(10**10)}, hang=False)
    with pytest.raises(PayloadTooLargeError, match="100000"):
        await build(site).fetch(f"http://images.test:{site.port}/", "url")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (Page(b"<html>", 404), "answered 404"),
        (Page(b"", 304), "answered 304"),
        (Page(b"x", 206), "answered 206"),
        (Page(b"", 302), "answered 302"),
        (Page(b"bomb", headers={"content-encoding": "gzip"}), "compressed"),
        (Page(b"cut", length=False, headers={"content-length": "50"}), "cannot be fetched"),
    ],
)
async def test_what_is_no_picture_names_the_reason(site: Site, build: Build, page: Page, words: str) -> None:
    site.pages["/"] = page
    with pytest.raises(RemoteImageError, match=words):
        await build(site).fetch(f"http://images.test:{site.port}/", "url")


async def test_nothing_listening_is_the_callers_fault(build: Build) -> None:
    async with serving() as gone:
        fetcher = build(gone)
    with pytest.raises(RemoteImageError, match="cannot be fetched"):
        await fetcher.fetch(f"http://images.test:{gone.port}/", "url")


async def test_an_unchanged_file_is_not_sent_again(site: Site, build: Build) -> None:
    site.pages["/"] = Page(b"picture", etag='"1"')
    fetcher, url = build(site), f"http://images.test:{site.port}/"
    first = await fetcher.fetch(url, "url")
    again = await fetcher.fetch(url, "url", first.version)
    assert (again.data, site.sent) == (None, len(b"picture"))
    assert site.connections == 2, "an idle connection may be gone just when it is used"


async def test_the_version_of_another_hop_says_nothing(site: Site, build: Build) -> None:
    site.pages["/old"] = Page(b"old", etag='"1"')
    fetcher, url = build(site), f"http://images.test:{site.port}/"
    site.pages["/"] = Page(status=302, headers={"location": "/old"})
    first = await fetcher.fetch(url, "url")
    site.pages["/new"] = Page(b"new", etag='"1"')
    site.pages["/"] = Page(status=302, headers={"location": "/new"})
    assert (await fetcher.fetch(url, "url", first.version)).data == b"new"


@pytest.mark.parametrize(("certified", "trusted"), [("images.test", True), ("other.test", False)])
async def test_a_certificate_is_checked_against_the_name(build: Build, certified: str, trusted: bool) -> None:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(certified).configure_cert(server)
    authority.configure_trust(client)
    async with serving(server) as site:
        site.pages["/"] = Page(b"picture")
        fetching = build(site, tls=client).fetch(f"https://images.test:{site.port}/", "url")
        if trusted:
            assert (await fetching).data == b"picture"
        else:
            with pytest.raises(RemoteImageError, match="certificate"):
                await fetching


async def test_the_systems_names_are_resolved_and_what_is_none_is_the_callers_fault() -> None:
    resolver = Resolver(1)
    assert IPv4Address("127.0.0.1") in await resolver("localhost", 80)
    with pytest.raises(RemoteImageError, match="cannot be resolved"):
        await resolver("a" * 64 + ".invalid", 80)
    resolver.close()
