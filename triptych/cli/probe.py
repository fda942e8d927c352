"""Asks a part whether it is ready."""

from __future__ import annotations

import socket

import grpc
from grpc_health.v1 import health_pb2

from triptych.channel import open_blocking_channel
from triptych.cli.plan import HOST, Part
from triptych.tls import Tls

TIMEOUT_S = 1.0


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def is_ready(part: Part) -> bool:
    """True when all its ports listen and its gRPC health, where it has one, is SERVING."""
    if not all(_listens(port) for port in (part.port, *part.also_listens)):
        return False
    return part.kind == "valkey" or is_serving(part.address)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=TIMEOUT_S).close()
    except OSError:
        return False
    return True


def is_serving(address: str, service: str = "", tls: Tls | None = None, timeout_s: float = TIMEOUT_S) -> bool:
    """What gRPC health at `host:port` says of a service; "" is the whole process. False when nobody answers in time."""
    with open_blocking_channel(address, tls) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING
