"""Options that every gRPC channel of Triptych uses, on both sides and in the SDK."""

from __future__ import annotations

import grpc

MAX_MESSAGE_BYTES = 16 * 2**20
KEEPALIVE_MS = 20_000

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
    ("grpc.keepalive_timeout_ms", 10_000),
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
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two processes must never share a port by accident.
    ("grpc.so_reuseport", 0),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """An asyncio channel to `host:port`; connects lazily and reconnects by itself."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
