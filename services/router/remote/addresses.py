"""Which addresses may be connected to on behalf of a client. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# The only part of IPv6 that is routed in public.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Translators and tunnels that lead to an IPv4 address inside: NAT64 is unwrapped, 6to4 and Teredo are no longer used.
_NAT64 = IPv6Network("64:ff9b::/96")
_TUNNELS = (IPv6Network("2002::/16"), IPv6Network("2001::/32"))
# They look public, and tell machines of Azure and Oracle what only their owner should know.
_METADATA = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))


def may_connect(address: Address, private: Sequence[Network] = ()) -> bool:
    """Whether `address` is public, or inside one of the networks that the operator has opened."""
    address = _unwrap(address)
    if any(address.version == network.version and address in network for network in private):
        return True
    if isinstance(address, IPv6Address):
        return _is_public_v6(address)
    metadata = any(address in network for network in _METADATA)
    return address.is_global and not (address.is_multicast or address.is_reserved or metadata)


def _is_public_v6(address: IPv6Address) -> bool:
    tunnelled = any(address in network for network in _TUNNELS)
    return address in _GLOBAL_UNICAST and address.is_global and not tunnelled


def _unwrap(address: Address) -> Address:
    if not isinstance(address, IPv6Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(address.packed[-4:]) if address in _NAT64 else address
