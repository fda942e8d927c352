"""How every gRPC channel of Triptych is opened, and the options of both its sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import grpc

from triptych.errors import InvalidArgumentError
from triptych.tls import Tls

MAX_MESSAGE_BYTES = 16 * 2**20
KEEPALIVE_MS = 20_000
# Of both options that look alike the second one is what notices a peer whose packets are dropped; its default is 60 s.
PING_TIMEOUT_MS = 10_000

_LIMITS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Image names and error details are small; this only bounds what a stranger can send.
    ("grpc.max_metadata_size", 64 * 1024),
]
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_LIMITS,
    # A silent prefill of a minute must survive, and a link cut without a FIN must be noticed.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
SERVER_OPTIONS: list[tuple[str, int]] = [
    *_LIMITS,
    # Below the clients' interval, otherwise the server answers pings with GOAWAY too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 4),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two processes must never share a port by accident.
    ("grpc.so_reuseport", 0),
]


Channel = TypeVar("Channel", grpc.Channel, grpc.aio.Channel)


def open_channel(address: str, tls: Tls | None = None) -> grpc.aio.Channel:
    """An asyncio channel to `host:port`, in plain text without `tls`; connects lazily and reconnects by itself."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, tls.credentials(), options=CHANNEL_OPTIONS)


def open_blocking_channel(address: str, tls: Tls | None = None) -> grpc.Channel:
    """`open_channel` for code without an event loop."""
    if tls is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, tls.credentials(), options=CHANNEL_OPTIONS)


def with_key(channel: Channel, api_key: str | None) -> Channel:
    """What stubs need of `channel`; every call carries the API key, if there is one."""
    if not api_key:
        return channel
    if not (api_key.isascii() and api_key.isprintable()):
        raise InvalidArgumentError("an API key is printable ASCII text", param="api_key")
    return cast("Channel", _KeyedChannel(channel, api_key))


class _KeyedChannel:
    """Makes the calls of another channel, blocking or not, with a header more."""

    def __init__(self, channel: grpc.Channel | grpc.aio.Channel, api_key: str) -> None:
        self._channel: Any = channel
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    def unary_unary(self, *method: Any, **options: Any) -> Any:
        """See `grpc.Channel`."""
        return self._keyed(self._channel.unary_unary(*method, **options))

    def unary_stream(self, *method: Any, **options: Any) -> Any:
        """See `grpc.Channel`."""
        return self._keyed(self._channel.unary_stream(*method, **options))

    def stream_unary(self, *method: Any, **options: Any) -> Any:
        """See `grpc.Channel`."""
        return self._keyed(self._channel.stream_unary(*method, **options))

    def stream_stream(self, *method: Any, **options: Any) -> Any:
        """See `grpc.Channel`."""
        return self._keyed(self._channel.stream_stream(*method, **options))

    def _keyed(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, metadata: Iterable[tuple[str, str | bytes]] | None = None, **options: Any) -> Any:
            return inner(*arguments, metadata=(*self._metadata, *(metadata or ())), **options)

        return call
