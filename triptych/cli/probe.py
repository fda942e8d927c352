"""Asks a part whether it is ready; `triptych probe` asks any service. Imports nothing that a health check can spare."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from triptych.channel import open_blocking_channel
from triptych.cli.plan import HOST, Part
from triptych.errors import UnavailableError
from triptych.tls import Tls, chosen_tls

TIMEOUT_S = 1.0


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def why_taken(port: int) -> str:
    """Why nobody can listen on this port of the loopback now; empty when one can."""
    with socket.socket() as probe:
        # As servers do: a connection that has just ended does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return os.strerror(error.errno or 0)
    return ""


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


def run_probe(arguments: Sequence[str]) -> None:
    """`triptych probe`: return when a service is healthy, else UnavailableError; bad usage exits with status 2."""
    given = _parser().parse_args(arguments)
    tls = chosen_tls(given.tls, given.tls_ca, given.tls_cert, given.tls_key)
    if not is_serving(given.address, given.service, tls, given.timeout):
        raise UnavailableError(f"{given.service or 'the process'} at {given.address} is not serving")


def _parser() -> argparse.ArgumentParser:
    about = "Exit with 0 when a service is healthy: the health check of containers."
    parser = argparse.ArgumentParser("triptych probe", description=about)
    parser.add_argument("address", help="host:port of any service")
    parser.add_argument("--service", default="", help="part of it, for example liveness; unset: the process")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds to wait")
    use = os.environ.get("TRIPTYCH_TLS", "").lower() in ("1", "true", "yes", "on")
    parser.add_argument("--tls", action="store_true", default=use, help="encrypt; implied by the next three")
    for name, meaning in (("ca", "PEM file of CAs"), ("cert", "own certificate"), ("key", "its private key")):
        unset = os.environ.get(f"TRIPTYCH_TLS_{name.upper()}") or None
        parser.add_argument(f"--tls-{name}", type=Path, default=unset, help=meaning)
    return parser
