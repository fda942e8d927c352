"""Carries the experiments out: in shuffled order, every trial with empty caches, every call recorded and predicted."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from triptych.lab.endpoint import Endpoint, Reply
from triptych.lab.groups import Group, Setup
from triptych.lab.material import Material
from triptych.lab.oracle import Oracle
from triptych.lab.record import Prices, Row
from triptych.lab.sessions import POLICIES, Session, Step
from triptych.lab.talks import Talk

Observe = Callable[[Row], None]
Breakers = Mapping[str, Callable[[], None]]
BREAK_TURNS = 3
SALT, FLUSH, LOST = "other-salt", "redis-flushed", "worker-lost"
"""Between two turns: the caller takes another salt, Redis is emptied, the decode worker is killed and replaced."""


@dataclass(frozen=True)
class Trial:
    """One group or policy, once. `setup.turns` is the length of the history or of the session."""

    experiment: str
    name: str
    repeat: int
    setup: Setup
    group: Group | None = None


@dataclass(frozen=True)
class Plan:
    """What to run."""

    groups: Sequence[Group]
    policies: Sequence[str]
    histories: Sequence[int]
    session_turns: int
    repeats: int
    words: bool = True
    breaks: Sequence[str] = (SALT,)
    seed: int = 0


def trials(plan: Plan, material: Material) -> list[Trial]:
    """All trials of a plan, shuffled by its seed: what drifts over time then falls on all groups alike."""
    found = [
        Trial("pair", group.name, repeat, Setup(material, turns, pictures), group)
        for repeat in range(plan.repeats)
        for turns in plan.histories
        for pictures in ((True, False) if plan.words else (True,))
        for group in plan.groups
        if pictures or group.words
    ]
    found += [
        Trial("session", policy, repeat, Setup(material, plan.session_turns, True))
        for repeat in range(plan.repeats)
        for policy in plan.policies
    ]
    found += [
        Trial("break", name, repeat, Setup(material, BREAK_TURNS, True))
        for repeat in range(plan.repeats)
        for name in plan.breaks
    ]
    random.Random(plan.seed).shuffle(found)
    return found


class Lab:
    """Runs trials on one endpoint. `breakers` do to the cluster what breaks are named after."""

    def __init__(self, endpoint: Endpoint, prices: Prices, observe: Observe, breakers: Breakers | None = None) -> None:
        self._endpoint, self._prices, self._observe, self._breakers = endpoint, prices, observe, breakers or {}

    def run(self, trial: Trial) -> None:
        """One trial; raises the SDK's errors."""
        call = _Trial(trial, self._endpoint, self._prices, self._observe)
        if trial.group is not None:
            pair = trial.group.build(trial.setup)
            first = call.ask(1, pair.first, None, slid=False)
            call.ask(2, pair.second(first), pair.expected, slid=trial.name in "DE")
            return
        policy = POLICIES.get(trial.name, POLICIES["append"])()
        session = Session(trial.setup.material, policy, trial.setup.turns)
        session.steps(lambda step: self._step(call, trial, step))

    def _step(self, call: _Trial, trial: Trial, step: Step) -> str:
        if trial.experiment == "break" and step.number > 1:
            self._breakers.get(trial.name, lambda: None)()
            call.broken(trial.name)
        return call.ask(step.number, step.talk, step.item.answer, step.slid)


class _Trial:
    """The calls of one trial, which share a cache that was empty before."""

    def __init__(self, trial: Trial, endpoint: Endpoint, prices: Prices, observe: Observe) -> None:
        self._trial, self._endpoint, self._prices, self._observe = trial, endpoint, prices, observe
        self._salt = f"lab-{secrets.token_hex(8)}"
        self.oracle: Oracle | None = None

    def ask(self, turn: int, talk: Talk, expected: str | None, slid: bool) -> str:
        reply = self._endpoint.ask(talk, self._salt, self._salt)
        predicted = self._predict(reply)
        self._observe(self._row(turn, reply, predicted, expected, slid))
        return reply.measured.text

    def broken(self, name: str) -> None:
        """What a break means for this trial's caches. Redis holds no KV, so emptying it changes nothing here."""
        if name == SALT:
            self._salt = f"lab-{secrets.token_hex(8)}"
            self.oracle = None
        elif name == LOST and self.oracle is not None:
            self.oracle.lose_answers()

    def _predict(self, reply: Reply) -> int | None:
        size = self._endpoint.block_size()
        if reply.prompt is None or size is None:
            return None
        self.oracle = self.oracle or Oracle(size)
        predicted = self.oracle.reads(reply.prompt)
        self.oracle.computed(reply.prompt, reply.answer_ids)
        return predicted

    def _row(self, turn: int, reply: Reply, predicted: int | None, expected: str | None, slid: bool) -> Row:
        trial, measured = self._trial, reply.measured
        return Row(
            experiment=trial.experiment,
            group=trial.name,
            repeat=trial.repeat,
            history=trial.setup.turns,
            pictures=trial.setup.pictures,
            turn=turn,
            measured=measured,
            predicted_read=predicted,
            right=None if expected is None else measured.text.strip() == expected,
            input_cost=self._prices.input_cost(measured),
            cost=self._prices.cost(measured),
            slid=slid,
        )
