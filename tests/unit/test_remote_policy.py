"""Which URLs and which addresses may be fetched from."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.remote.addresses import may_connect
from services.router.remote.policy import UrlPolicy, parse_domain, parse_url
from services.router.settings import RouterSettings
from triptych.errors import RemoteImageError

POLICY = UrlPolicy([parse_domain(text) for text in ("example.com", "*.Example.net", "files.test:8443", "[2606::1]:80")])


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTPS://EXAMPLE.com:443/a?b=c#d", "https://example.com/a?b=c"),
        ("https://example.com:80/", "https://example.com:80/"),
        ("http://a.b.example.net/ä", "http://a.b.example.net/%C3%A4"),
        ("https://files.test:8443/%2F?x=%41", "https://files.test:8443/%2F?x=%41"),
        ("http://[2606:0::1]/", "http://[2606::1]/"),
    ],
)
def test_listed_hosts_are_fetched_under_one_spelling(url: str, canonical: str) -> None:
    assert POLICY.target(url).url == canonical


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "http://example.net/",
        "http://notexample.com/",
        "http://example.com.evil.test/",
        "http://example.com:8080/",
        "https://files.test/",
        "http://169.254.169.254/latest/meta-data",
    ],
)
def test_other_hosts_and_ports_are_not(url: str) -> None:
    with pytest.raises(RemoteImageError, match="fetches no images from"):
        POLICY.target(url)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "ftp://example.com/",
        "gopher://example.com/",
        "//example.com/",
        "http:example.com",
        "http://127.1/",
        "http://0x7f000001/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://127.0.0.1./",
        "http://localhost./",
        "http://example.com./",
        "http://[::ffff:127.0.0.1%25lo]/",
        "http://[127.0.0.1]/",
        "http://[::1",
        "http://user@example.com/",
        "http://user:password@example.com/",
        "http://example.com\\@evil.test/",
        "http://exa mple.com/",
        "http://example.com/\n",
        "http://example.com\t/",
        "http://ex%61mple.com/",
        "http://１２７.0.0.1/",
        "http://example。com/",
        "http://example.com:99999/",
        "http://-example.com/",
        "http://" + "a" * 64 + ".com/",
        "http://example.com/" + "a" * 9000,
        "http://",
    ],
)
def test_odd_spellings_are_refused_before_anything_is_resolved(url: str) -> None:
    with pytest.raises(RemoteImageError) as caught:
        parse_url(url)
    assert "password" not in caught.value.message


def test_a_redirect_is_as_strictly_checked() -> None:
    here = POLICY.target("https://example.com/a/b")
    assert POLICY.redirect(here, "../c").url == "https://example.com/c"
    for location in (
        "http://127.0.0.1/",
        "//evil.test/",
        "http://example.com/",
        "https://example.com:22/",
        "file:///x",
        "//[",
    ):
        with pytest.raises(RemoteImageError):
            POLICY.redirect(here, location)


@pytest.mark.parametrize("text", ["", "*", "*.", "a b", "http://x", "x/y", "x:", "x:123456", "1.2.3", "*.*.x", "x."])
def test_a_bad_entry_of_the_allow_list_stops_the_router(text: str) -> None:
    with pytest.raises(ValueError, match="domain"):
        RouterSettings(model=Path("x"), image_domains=[text])


PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.31.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "240.0.0.1",
    "198.18.0.1",
    "::1",
    "::",
    "fe80::1",
    "fd00:ec2::254",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::a00:1",
    "2002:7f00:1::1",
    "2001:0:7f00:1::1",
    "2001:db8::1",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_addresses_that_are_not_public_are_refused(text: str) -> None:
    assert not may_connect(ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_not(text: str) -> None:
    assert may_connect(ip_address(text))


@given(st.ip_addresses(v=4))
def test_how_an_address_is_wrapped_changes_nothing(address: IPv4Address) -> None:
    for prefix in ("::ffff:", "64:ff9b::"):
        assert may_connect(ip_address(f"{prefix}{address}")) == may_connect(address)


def test_an_opened_network_opens_nothing_else() -> None:
    opened = [ip_network("10.0.0.0/24"), ip_network("fd00::/64")]
    reachable = ["10.0.0.9", "::ffff:10.0.0.9", "fd00::1", "10.0.1.1", "fd01::1", "127.0.0.1"]
    assert [may_connect(ip_address(text), opened) for text in reachable] == [True] * 3 + [False] * 3


@given(st.text(max_size=40), st.sampled_from(["", "http://", "https://example.com/", "http://[", "http://1.", "//"]))
def test_any_text_is_refused_or_has_one_spelling(text: str, start: str) -> None:
    try:
        target = parse_url(start + text)
    except RemoteImageError:
        return
    assert parse_url(target.url) == target


@given(st.text(alphabet="htps:/.@\\[]%0123456789abx#?\t", max_size=30))
def test_a_redirect_never_leaves_the_allow_list(location: str) -> None:
    here = POLICY.target("https://example.com/a/b")
    try:
        following = POLICY.redirect(here, location)
    except RemoteImageError:
        return
    assert (following.scheme, following.host) == ("https", "example.com")
