"""`triptych chat`: one question about pictures, answered as it is generated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from triptych.client import Client
from triptych.exchange import GenerateOptions
from triptych.messages import Image, user


def run_chat(question: str, images: Sequence[Path], address: str, model: str, options: GenerateOptions) -> None:
    """Print the answer piece by piece, then its account in one dim line."""
    console = Console(soft_wrap=True, highlight=False)
    pictures = [Image.from_file(path) for path in images]
    with Client(address) as client:
        stream = client.generate([user(*pictures, question)], model, **options)
        for piece in stream.text():
            console.print(piece, end="", markup=False)
        usage = stream.answer().usage
    console.print()
    console.print(
        f"{usage.prompt_tokens} prompt tokens ({usage.visual_tokens} visual), {usage.completion_tokens} generated; "
        f"{usage.embedding_misses} encoded, {usage.embedding_hits} reused; "
        f"first token after {usage.times.first_token_ns / 1e6:.0f} ms",
        style="dim",
    )
