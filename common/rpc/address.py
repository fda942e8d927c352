"""Hosts and ports. An IPv6 address has colons of its own, so beside a port it stands in brackets."""

from __future__ import annotations

import socket
from ipaddress import ip_address


def host_port(host: str, port: int) -> str:
    """`host:port`, or `[host]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_every_interface(host: str) -> bool:
    """Whether `host` is no address but stands for all of this machine, as 0.0.0.0 and :: do."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return not host


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; `::` takes IPv4, too. OSError when the address is taken or none of ours."""
    if ":" not in host:
        return socket.create_server((host, port))
    both = is_every_interface(host) and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=both)
