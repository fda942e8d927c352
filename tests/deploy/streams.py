"""Answers that are being given while something happens to the cluster."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from tests.deploy.stack import Stack
from triptych import Image
from triptych.cli.script import FOLDER

QUESTION, ANSWER = "What shape is red?", "star"
LONG_TOKENS = 160


def ask(stack: Stack) -> str:
    """The demo's first question with its picture, over gRPC."""
    with stack.client() as client:
        answer = client.generate([Image.from_file(FOLDER / "shapes.png"), QUESTION], temperature=0.0).answer()
    return answer.text.strip()


def long_answer(stack: Stack, number: int, begun: threading.Semaphore) -> str:
    """A greedy answer that goes on after the model would stop; `begun` is released with its first piece."""
    text = ""
    prompt = f"{number}: Who are you?"
    with stack.client() as client:
        for piece in client.generate(prompt, temperature=0.0, max_tokens=LONG_TOKENS, ignore_eos=True).text():
            if not text:
                begun.release()
            text += piece
    return text


def long_answers(stack: Stack, count: int, pool: ThreadPoolExecutor) -> list[Future[str]]:
    """So many streams at once; returns when each has given its first piece."""
    begun = threading.Semaphore(0)
    streams = [pool.submit(long_answer, stack, number, begun) for number in range(count)]
    for _ in streams:
        assert begun.acquire(timeout=120), "a stream does not begin"
    return streams
