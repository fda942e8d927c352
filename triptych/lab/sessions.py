"""Conversations of many turns under different policies: what a sliding window costs, and what avoids that cost."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from triptych.conversation import AppendOnly, ImageReferences, ImageWindow, Log, Policy, PrefixWarning, RollOver
from triptych.conversation.log import Description
from triptych.conversation.policy import Need
from triptych.conversation.turn import Turn
from triptych.lab.material import Item, Material
from triptych.lab.talks import Talk, question
from triptych.messages import Image

WINDOW = 4
POLICIES: dict[str, Callable[[], Policy]] = {
    "append": AppendOnly,
    "window": lambda: ImageWindow(WINDOW),
    "roll-over": lambda: RollOver(max_images=WINDOW),
    "references": ImageReferences,
}


@dataclass(frozen=True)
class Step:
    """One turn of a session, ready to be sent. `slid`: a picture that was sent before is not sent any more."""

    number: int
    talk: Talk
    item: Item
    slid: bool


class Session:
    """Asks about one item after the other. What a policy needs written comes from the material, always the same."""

    def __init__(self, material: Material, policy: Policy, turns: int) -> None:
        self._material, self._policy, self._turns = material, policy, turns
        self._notes = {item.picture.digest: item.note for item in material.items}
        self._log = Log(tuple(material.begin()))
        self._sent: Talk = ()

    def steps(self, ask: Callable[[Step], str]) -> None:
        """Every turn in order; `ask` sends it and returns the answer, which the next turn repeats."""
        for number in range(1, self._turns + 1):
            item = self._material.item(number - 1)
            turn = Turn(self._log, self._sent, self._policy, question(item, pictures=True))
            while (need := turn.need()) is not None:
                turn.supply(need, self._write(need))
            talk = _quietly(turn)
            answer = ask(Step(number, talk, item, _left(self._sent, talk)))
            self._log, self._sent = turn.finish(answer), talk

    def _write(self, need: Need) -> str:
        if isinstance(need.fact, Description):
            return self._notes[need.fact.digest]
        seen = (part.digest for message in need.messages for part in message.content if isinstance(part, Image))
        return "The user has shown: " + "; ".join(self._notes[digest] for digest in seen)


def _quietly(turn: Turn) -> Talk:
    with warnings.catch_warnings():
        # That the window slides is what is being measured.
        warnings.simplefilter("ignore", PrefixWarning)
        return turn.messages()


def _left(before: Talk, now: Talk) -> bool:
    return bool(set(_digests(before)) - set(_digests(now)))


def _digests(talk: Talk) -> Iterator[str]:
    return (part.digest for message in talk for part in message.content if isinstance(part, Image))
