"""Asks a checkpoint freshly drawn questions through plain transformers and counts exact answers.

Run from the repository's root: `python -m models.training.evaluate models/triptych-demo`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, BatchFeature, Qwen2VLForConditionalGeneration

from models.training.dialogues import Message
from models.training.held_out import Tally, held_out

PLACEHOLDER = "<|image_pad|>"
LONGEST_ANSWER = 48  # tokens


class Reference:
    """A checkpoint in plain transformers, one question at a time."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        self.model = Qwen2VLForConditionalGeneration.from_pretrained(directory, dtype=dtype).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.image_processor = AutoImageProcessor.from_pretrained(directory)

    def answer(self, messages: Sequence[Message], images: Sequence[Image.Image]) -> str:
        """The greedy answer to a chat."""
        pictures = self.image_processor(images=list(images), return_tensors="pt") if images else BatchFeature()
        ids = self._token_ids(messages, pictures)
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=(ids == self.model.config.image_token_id).int(),
                max_new_tokens=LONGEST_ANSWER,
                **pictures,
            )
        return str(self.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))

    def _token_ids(self, messages: Sequence[Message], pictures: BatchFeature) -> torch.Tensor:
        """(1, length), with as many placeholders for each picture as it has tokens."""
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        head, *tails = str(text).split(PLACEHOLDER)
        counts = (pictures["image_grid_thw"].prod(-1) // self.image_processor.merge_size**2).tolist() if tails else []
        expanded = head + "".join(PLACEHOLDER * count + tail for count, tail in zip(counts, tails, strict=True))
        return torch.tensor([self.tokenizer(expanded)["input_ids"]])


def evaluate(reference: Reference, count: int, seed: int = 0) -> dict[str, float]:
    """Share of exact answers to `count` held-out questions, per kind and in all."""
    tally = Tally()
    for item in held_out(count, seed):
        tally.add(item, reference.answer(item.messages, item.images))
    return tally.shares()


def main() -> None:
    """Read the flags, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shares = evaluate(Reference(given.checkpoint, getattr(torch, given.dtype)), given.count, given.seed)
    print(json.dumps({name: round(share, 3) for name, share in shares.items()}, indent=2))


if __name__ == "__main__":
    main()
