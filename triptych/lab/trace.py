"""Traces: requests with the times at which they arrive, recorded or drawn at random.

A line is a JSON object: `at_s` (seconds from the start), `session`, `turn` (from 1), `group` (a label for the report)
and `messages` as in the OpenAI API, where {"type": "picture", "index": n} may stand for picture n of the material.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from triptych.errors import InvalidArgumentError, TriptychError
from triptych.lab.material import Material
from triptych.lab.record import lines_of
from triptych.lab.sessions import POLICIES, Session, Step
from triptych.lab.talks import Talk
from triptych.messages import Image, as_messages


@dataclass(frozen=True)
class Arrival:
    """One request of a trace."""

    at_s: float
    session: str
    turn: int
    group: str
    talk: Talk


@dataclass(frozen=True)
class Shape:
    """What a random trace is like: arrivals of sessions are Poisson, pictures are drawn with Zipf's law."""

    sessions: int = 20
    turns: int = 6
    sessions_per_s: float = 0.5
    think_s: float = 2.0
    zipf: float = 1.0
    policies: tuple[str, ...] = ("append", "window")
    seed: int = 0


def draw_trace(shape: Shape, material: Material) -> list[Arrival]:
    """The arrivals in order of time; equal shapes give equal traces."""
    rng = random.Random(shape.seed)
    begins = accumulate(rng.expovariate(shape.sessions_per_s) for _ in range(shape.sessions))
    found: list[Arrival] = []
    for index, begin in enumerate(begins):
        policy = shape.policies[index % len(shape.policies)]
        found += _session(f"s{index}", policy, begin, shape, _shuffled(material, shape, rng), rng)
    return sorted(found, key=lambda arrival: arrival.at_s)


def _shuffled(material: Material, shape: Shape, rng: random.Random) -> Material:
    """The material as one session meets it: the first pictures of the list are the popular ones."""
    weights = [1 / (rank + 1) ** shape.zipf for rank in range(len(material.items))]
    return replace(material, items=tuple(rng.choices(material.items, weights, k=shape.turns)))


def _session(
    name: str, policy: str, begin: float, shape: Shape, material: Material, rng: random.Random
) -> list[Arrival]:
    found: list[Arrival] = []
    times = accumulate((rng.expovariate(1 / shape.think_s) for _ in range(shape.turns - 1)), initial=begin)

    def ask(step: Step) -> str:
        found.append(Arrival(next(times), name, step.number, policy, step.talk))
        return step.item.answer

    Session(material, POLICIES[policy](), shape.turns).steps(ask)
    return found


def write_trace(path: Path, arrivals: Iterable[Arrival], material: Material) -> None:
    """One line a request."""
    places = {item.picture.digest: index for index, item in enumerate(material.items)}
    path.write_text("".join(f"{json.dumps(_to_json(arrival, places))}\n" for arrival in arrivals))


def read_trace(path: Path, material: Material) -> list[Arrival]:
    """The arrivals of a file in order of time; InvalidArgumentError names the line at fault."""
    return sorted(_lines(path, material), key=lambda arrival: arrival.at_s)


def _lines(path: Path, material: Material) -> Iterator[Arrival]:
    for number, line in enumerate(lines_of(path), start=1):
        try:
            yield _from_json(json.loads(line), material)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, TriptychError) as error:
            raise InvalidArgumentError(f"line {number} of the trace: {error}", param="trace") from error


def _from_json(entry: dict[str, Any], material: Material) -> Arrival:
    messages = [{**message, "content": _content(message["content"], material)} for message in entry["messages"]]
    group = str(entry.get("group", "trace"))
    return Arrival(float(entry["at_s"]), str(entry["session"]), int(entry["turn"]), group, tuple(as_messages(messages)))


def _content(content: str | Sequence[dict[str, Any]], material: Material) -> list[Any]:
    parts = [content] if isinstance(content, str) else content
    return [_picture(part, material) for part in parts]


def _picture(part: Any, material: Material) -> Any:
    """The picture that a part stands for, or the part as it is."""
    if isinstance(part, dict) and part.get("type") == "picture":
        return material.items[int(part["index"])].picture
    return part


def _to_json(arrival: Arrival, places: dict[str, int]) -> dict[str, Any]:
    messages = [
        {"role": message.role, "content": [_part(part, places) for part in message.content]} for message in arrival.talk
    ]
    head = {"at_s": round(arrival.at_s, 3), "session": arrival.session, "turn": arrival.turn, "group": arrival.group}
    return head | {"messages": messages}


def _part(part: str | Image, places: dict[str, int]) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "picture", "index": places[part.digest]}
    return {"type": "text", "text": part}
