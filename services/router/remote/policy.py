"""Which URLs may be fetched at all. Pure; what names resolve to is checked when connecting.

One strict reading of a URL is used for the check and for the request alike: where parsers disagree about a spelling,
the spelling is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from triptych.errors import RemoteImageError

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL_LENGTH = 8192
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# A last label that resolvers take for a part of an IPv4 address: 127.1, 0x7f000001, 0177.0.0.1.
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_DOMAIN = re.compile(r"(?P<wild>\*\.)?(?P<host>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?")
_SAFE = "/%:@!$&'()*+,;=~-._?"


@dataclass(frozen=True)
class Target:
    """One URL as it is requested; `path` holds the query, too."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and, unless it is the usual one, port, for the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if DEFAULT_PORTS[self.scheme] == self.port else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The canonical spelling."""
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True)
class Domain:
    """One entry of the allow-list: `images.example.com`, `*.example.com` (names below it), either with `:port`."""

    host: str
    wild: bool = False
    port: int | None = None

    def allows(self, target: Target) -> bool:
        """Without a port, 80 and 443 are meant."""
        ports = DEFAULT_PORTS.values() if self.port is None else (self.port,)
        matches = target.host.endswith(f".{self.host}") if self.wild else target.host == self.host
        return matches and target.port in ports


class UrlPolicy:
    """What the allow-list says of a URL; every refusal is a RemoteImageError that does not repeat the URL."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        self._domains = tuple(domains)

    def target(self, url: str) -> Target:
        """The URL a client sent."""
        target = parse_url(url)
        if not any(domain.allows(target) for domain in self._domains):
            raise RemoteImageError(f"this server fetches no images from {target.authority}")
        return target

    def redirect(self, target: Target, location: str) -> Target:
        """Where an answer of `target` leads: as strictly checked, and never from https back to http."""
        try:
            url = urljoin(target.url, location)
        except ValueError as error:
            raise RemoteImageError("the image's URL redirects to a malformed one") from error
        following = self.target(url)
        if (target.scheme, following.scheme) == ("https", "http"):
            raise RemoteImageError("the image's URL redirects from https to http")
        return following


def parse_url(url: str) -> Target:
    """RemoteImageError for anything but a plain http or https URL with a well-spelled host and no credentials."""
    if len(url) > MAX_URL_LENGTH:
        raise RemoteImageError(f"the URL has more than {MAX_URL_LENGTH} characters")
    if any(char <= " " or char in "\\\x7f" for char in url):
        raise RemoteImageError("the URL holds a space, a control character or a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise RemoteImageError("the URL is malformed") from error
    if parts.scheme not in DEFAULT_PORTS:
        raise RemoteImageError("images are fetched by http and https only")
    if "@" in parts.netloc:
        raise RemoteImageError("a URL with credentials is not fetched")
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    return Target(parts.scheme, check_host(parts), port, _path(parts))


def check_host(parts: SplitResult) -> str:
    """The host in lower case: a DNS name without a trailing dot, or an address in its one usual spelling."""
    host = (parts.hostname or "").lower()
    if parts.netloc.startswith("["):
        return str(_address(IPv6Address, host))
    if _NUMERIC.fullmatch(host):
        return str(_address(IPv4Address, host))
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise RemoteImageError("the URL's host is no plain name")
    return host


def parse_domain(text: str) -> Domain:
    """An entry of the allow-list; ValueError with a sentence, as settings want it."""
    match = _DOMAIN.fullmatch(text.lower())
    if match is None:
        raise ValueError(f"{text!r} is no domain: host, *.domain, or either with :port")
    try:
        host = check_host(urlsplit(f"//{match['host']}"))
    except RemoteImageError as error:
        raise ValueError(f"{text!r} is no domain: {error.message}") from error
    return Domain(host, bool(match["wild"]), int(match["port"]) if match["port"] else None)


def _address(kind: type[IPv4Address | IPv6Address], host: str) -> IPv4Address | IPv6Address:
    try:
        address = kind(host)
    except AddressValueError as error:
        raise RemoteImageError("the URL's host is an oddly spelled address") from error
    if isinstance(address, IPv6Address) and address.scope_id:
        raise RemoteImageError("the URL's host is an address of one link")
    return address


def _path(parts: SplitResult) -> str:
    path = parts.path or "/"
    return quote(f"{path}?{parts.query}" if parts.query else path, safe=_SAFE)
