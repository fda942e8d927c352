"""Builds the fetching of pictures from the router's settings."""

from __future__ import annotations

import logging
import ssl
from ipaddress import ip_network

import httpcore

from services.router.pictures.images import Images
from services.router.remote.connecting import CheckedBackend
from services.router.remote.fetching import Fetcher
from services.router.remote.images import RemoteImages
from services.router.remote.policy import UrlPolicy, parse_domain
from services.router.remote.resolving import Resolver
from services.router.settings import RouterSettings
from triptych.errors import ConfigError
from triptych.tls import read_pem

CACHE_BYTES = 4 * 2**20


def open_remote(settings: RouterSettings, images: Images) -> RemoteImages | None:
    """None, and no URL is ever fetched, unless there are domains to fetch from."""
    if not settings.image_domains:
        return None
    # At its lower levels it would log whole URLs, which may carry a signature.
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    policy = UrlPolicy([parse_domain(domain) for domain in settings.image_domains])
    opened = [ip_network(network) for network in settings.image_private_networks]
    backend = CheckedBackend(opened, Resolver(settings.max_fetching_images))
    fetcher = Fetcher(policy, backend, _trust(settings), int(settings.max_image_size), settings.image_fetch_timeout_s)
    return RemoteImages(images, fetcher, settings.max_fetching_images, CACHE_BYTES)


def _trust(settings: RouterSettings) -> ssl.SSLContext:
    context = httpcore.default_ssl_context()
    if settings.image_ca is not None:
        read_pem(settings.image_ca)
        try:
            context.load_verify_locations(settings.image_ca)
        except ssl.SSLError as error:
            raise ConfigError(f"{settings.image_ca} holds no certificates ({error.reason})") from error
    return context
