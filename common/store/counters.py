"""What a process has seen of the embedding store, and whether that is a healthy picture."""

from __future__ import annotations

from dataclasses import dataclass

# A single bad value may be damage; a row of them means that writers and readers differ.
CORRUPT_IN_A_ROW = 3


@dataclass
class StoreCounters:
    """What happened in this process so far; `bytes` is the store's fill after the last write, of all processes.

    `failed_writes` and `corrupt_reads` count those since the last good one.
    """

    hits: int = 0
    memory_hits: int = 0
    misses: int = 0
    waits: int = 0
    evictions: int = 0
    refused: int = 0
    corrupt: int = 0
    write_errors: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    bytes: int = 0
    failed_writes: int = 0
    corrupt_reads: int = 0

    def looked(self, hit: bool) -> None:
        """A value was looked for."""
        self.hits += hit
        self.misses += not hit

    def read(self, size: int) -> None:
        """A good value of `size` bytes was read."""
        self.read_bytes += size
        self.corrupt_reads = 0

    def bad(self) -> None:
        """A value was damaged, foreign or of the wrong number of rows."""
        self.corrupt += 1
        self.corrupt_reads += 1

    def wrote(self, size: int, evicted: int, total: int) -> None:
        """The store took a value of `size` bytes, or, with 0, had no room for it."""
        self.refused += not size
        self.evictions += evicted
        self.written_bytes += size
        self.bytes = total
        self.failed_writes = 0

    def write_failed(self) -> None:
        """A value could not be written for another reason than room."""
        self.write_errors += 1
        self.failed_writes += 1

    def degraded(self) -> list[str]:
        """What does not work now, one sentence each."""
        sentences = []
        if self.failed_writes:
            sentences.append(f"the last {self.failed_writes} write(s) to the embedding store failed")
        if self.corrupt_reads >= CORRUPT_IN_A_ROW:
            sentences.append(f"the last {self.corrupt_reads} values read from the embedding store were unusable")
        return sentences
