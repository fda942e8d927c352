"""Asks a part whether it is ready."""

from __future__ import annotations

import socket

import grpc
from grpc_health.v1 import health_pb2

from triptych.cli.plan import HOST, Part

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
    return part.kind == "valkey" or _is_serving(part.address)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _is_serving(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING
