"""What a decode step consists of, and the seam through which KV is parked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from common.engine.sequence import Sequence
from services.decode.job import Job

Copy = Callable[[], None]
"""Moves the bytes. Called once, in the engine's thread, before anything else is done to the blocks there."""


class ParkingSpace(Protocol):
    """Where preempted KV goes; see `services.decode.parking.Parking`."""

    def can_park(self, sequence: Sequence) -> bool:
        """True if there is room."""

    def park(self, sequence: Sequence) -> Copy:
        """How to copy out."""

    def unpark(self, sequence: Sequence) -> Copy:
        """How to copy back; the sequence counts as computed already."""

    def forget(self, sequence: Sequence) -> None:
        """Drop the copy."""


@dataclass(slots=True)
class Step:
    """First `copies` are made, in order, then `jobs` advance by one token. `parked`, at most one, is copied out."""

    jobs: list[Job] = field(default_factory=list)
    parked: list[Job] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    def __bool__(self) -> bool:
        """True if there is anything to do."""
        return bool(self.jobs or self.copies)

    @property
    def members(self) -> Iterable[Job]:
        """All whose blocks it reads or writes."""
        return (*self.jobs, *self.parked)
