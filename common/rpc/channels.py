"""Channels to peers, one an address, kept until the process ends."""

from __future__ import annotations

import grpc

from triptych.channel import open_channel
from triptych.tls import Tls


class Channels:
    """Opens a channel at first use. A peer that restarts on its address is reconnected to by gRPC itself."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls
        self._open: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to `host:port`."""
        if address not in self._open:
            self._open[address] = open_channel(address, self._tls)
        return self._open[address]

    async def forget(self, address: str) -> None:
        """Close the channel to a peer that is gone; its running calls are cancelled."""
        if channel := self._open.pop(address, None):
            await channel.close()

    async def close(self) -> None:
        """Close all."""
        for address in list(self._open):
            await self.forget(address)
