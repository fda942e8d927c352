"""Fetches the part of a prompt's prefix that another worker has cached and this one has not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from common.kv.fetching import KvPull, have
from common.kv.links import Links
from common.kv.tally import Direction, Tally
from common.rpc.channels import Channels
from common.tracing import span
from common.tracing.sparing import SparingLog
from common.worker.parts import Parts
from services.prefill.engine import PrefillEngine
from services.prefill.job import Job
from triptych.errors import TriptychError
from triptych.v1 import kv_pb2

log = SparingLog(logging.getLogger(__name__))


class Puller:
    """Decode keeps the KV of the tokens it generated; the next turn's prefill takes it from there.

    A failed fetch costs its time and nothing else: what was not fetched is computed.
    """

    def __init__(self, engine: PrefillEngine, parts: Parts, channels: Channels, links: Links, tally: Tally) -> None:
        self._engine = engine
        self._parts = parts
        self._channels = channels
        self._links = links
        self._rates, self._tally = engine.rates, tally

    async def pull(self, job: Job, ticket: kv_pb2.KvTicket, peers: Sequence[str]) -> None:
        """Fetch once the job has blocks, then let it be computed; never raises a TriptychError."""
        try:
            if job.has_blocks:
                return
            await job.admitted.wait()
            address, end = await self._longest(job, ticket, peers)
            end = self._parts.blocks.usable(job.sequence, end)
            if end > self._begin(job):
                way: Direction = "decode_to_prefill" if address == ticket.address else "peer_to_prefill"
                await self._fetch(job, address, end, way)
        except TriptychError as error:
            log.warning("KV could not be fetched and is computed: %s", error.message)
        finally:
            self._engine.pulled(job)

    def _begin(self, job: Job) -> int:
        return job.sequence.num_computed // self._parts.blocks.block_size

    async def _longest(self, job: Job, ticket: kv_pb2.KvTicket, peers: Sequence[str]) -> tuple[str, int]:
        """Who has the most leading blocks, and how many of them may be reused."""
        chain = job.sequence.chain
        hashes = chain.hashes[: job.reusable // chain.block_size] if chain else []
        held = min(ticket.held_blocks, len(hashes))
        asked = peers if held < len(hashes) else ()
        counts = await asyncio.gather(*(self._count(address, hashes) for address in asked))
        # Of equals the first: decode itself, whose connection is in use already.
        return max([(ticket.address, held), *zip(asked, counts, strict=True)], key=lambda pair: pair[1])

    async def _count(self, address: str, hashes: Sequence[bytes]) -> int:
        try:
            return await have(self._channels.get(address), hashes)
        except TriptychError as error:
            # Another one, or decode itself, may still have the blocks.
            log.warning("a peer did not say what it has cached: %s", error.message)
            return 0

    async def _fetch(self, job: Job, address: str, end: int, way: Direction) -> None:
        begin, sequence, layout = self._begin(job), job.sequence, self._parts.cache.layout
        size = (end - begin) * layout.bytes_per_block
        if sequence.chain is None or not self._rates.worth_fetching((end - begin) * layout.block_size, size):
            return
        started = time.monotonic()
        hashes, blocks = sequence.chain.hashes[begin:end], sequence.block_table[begin:end]
        pull = KvPull(self._links, self._parts.cache, hashes, blocks, self._parts.settings.kv_transport)
        with span("kv pull", direction=way, blocks=end - begin) as current:
            count = await pull.fetch(address)
            moved = count * layout.bytes_per_block
            current.set_attributes({"path": pull.path, "bytes": moved})
        self._tally.note(way, pull.path, moved)
        self._rates.fetch.note(moved, time.monotonic() - started)
        end = max(begin, self._parts.blocks.usable(sequence, begin + count))
        job.pulled_tokens = (end - begin) * layout.block_size
        sequence.num_computed += job.pulled_tokens
        self._parts.blocks.publish(sequence, since=begin * layout.block_size)
