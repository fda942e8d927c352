"""Dialogues of questions about one or several scenes, in the message format of Qwen2-VL's chat template."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from models.training.questions import ORDINALS, Question, ask, ask_which
from models.training.scenes import GRIDS, Scene, random_scene

Message = dict[str, Any]
SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer briefly.")
SMALL_TALK = {
    "Hello!": "Hello! Show me a picture and ask me about it.",
    "Hi": "Hello! Show me a picture and ask me about it.",
    "Who are you?": "I am the Triptych demo model.",
    "What can you do?": "I can tell you about colours, shapes, digits and words in small pictures.",
    "Thank you.": "You are welcome.",
    "Thanks": "You are welcome.",
}


@dataclass(frozen=True)
class Dialogue:
    """Pictures and the questions asked about them, in turn; all pictures come with the first one."""

    scenes: tuple[Scene, ...]
    questions: tuple[Question, ...]
    system: str | None = None
    text_first: bool = False

    def size(self) -> int:
        """About how many tokens it takes."""
        return sum(scene.rows * scene.cols for scene in self.scenes) + 20 * len(self.questions)

    def transcript(self) -> list[Message]:
        """The whole chat in Qwen2-VL's message format, with every answer."""
        chat: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for index, question in enumerate(self.questions):
            chat.append({"role": "user", "content": question.text if index else self._opening()})
            chat.append({"role": "assistant", "content": question.answer})
        return chat

    def messages(self) -> list[Message]:
        """The chat up to the last question, which is still to be answered."""
        return self.transcript()[:-1]

    def _opening(self) -> str | list[Message]:
        text = _text(self.questions[0].text)
        if not self.scenes:
            return self.questions[0].text
        if len(self.scenes) == 1:
            return [text, {"type": "image"}] if self.text_first else [{"type": "image"}, text]
        labels = [_text(f"{name.capitalize()} picture: ") for name in ORDINALS[: len(self.scenes)]]
        return [part for label in labels for part in (label, {"type": "image"})] + [text]


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def random_dialogue(
    rng: random.Random, *, turns: int, most: int = 6, grids: tuple[tuple[int, int], ...] = GRIDS
) -> Dialogue:
    """A dialogue of `turns` questions about one picture, or (one in six) about two to four."""
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else None
    if rng.random() < 1 / 6:
        return _dialogue_of_many(rng, min(turns, 3), system)
    scene = random_scene(rng, most=most, grid=rng.choice(grids))
    questions = tuple(ask(scene, rng) for _ in range(turns))
    return Dialogue((scene,), questions, system, text_first=rng.random() < 0.1)


def _dialogue_of_many(rng: random.Random, turns: int, system: str | None) -> Dialogue:
    while True:
        grids = rng.choices(GRIDS[:4], k=rng.choice((2, 2, 2, 3, 3, 4)))
        scenes = tuple(random_scene(rng, most=3, grid=grid) for grid in grids)
        questions = tuple(question for _ in range(turns) if (question := ask_which(scenes, rng)))
        if questions:
            return Dialogue(scenes, questions, system)


def small_talk(rng: random.Random, *, turns: int) -> Dialogue:
    """A dialogue without pictures."""
    texts = rng.sample(sorted(SMALL_TALK), turns)
    return Dialogue((), tuple(Question("talk", text, SMALL_TALK[text]) for text in texts))
