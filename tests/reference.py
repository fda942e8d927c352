"""The reference every answer is compared to: transformers itself on the same directory, fp32, greedy.

Nothing here uses our model families: placeholders come from transformers' processors, positions from its models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Gemma3Processor,
    LlavaProcessor,
    ProcessorMixin,
    Qwen2VLProcessor,
)

transformers.logging.disable_progress_bar()

MARGIN = 1e-4
"""Logits closer than this may swap between two correct orders of summation."""


@dataclass(frozen=True)
class ReferenceAnswer:
    """A greedy answer: `margins[i]` is how far token i's logit is above that of `runners_up[i]`."""

    prompt_ids: list[int]
    token_ids: list[int]
    margins: list[float]
    runners_up: list[int]


class Reference:
    """One checkpoint in plain transformers; not for several threads (Qwen keeps positions on the model object)."""

    def __init__(self, model_dir: Path, dtype: torch.dtype = torch.float32) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.model = AutoModelForImageTextToText.from_pretrained(model_dir, dtype=dtype).eval()
        self.processor = _processor(model_dir, self.tokenizer, self.model.config)
        ends = self.model.generation_config.eos_token_id
        self._eos = set(ends if isinstance(ends, list) else [ends])
        self.model.generation_config.eos_token_id = None  # generate to the full length, cut afterwards

    def inputs(self, messages: Sequence[Mapping[str, Any]], images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Model inputs of a chat whose image parts stand for `images` in order."""
        prompt = self.processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return dict(self.processor(text=[prompt], images=list(images) or None, return_tensors="pt"))

    @torch.no_grad()
    def logits(self, messages: Sequence[Mapping[str, Any]], images: Sequence[Image.Image]) -> Tensor:
        """Logits (T, vocabulary) at every token of the prompt."""
        logits: Tensor = self.model(**self.inputs(messages, images), use_cache=False).logits[0]
        return logits.float()

    @torch.no_grad()
    def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        images: Sequence[Image.Image],
        max_new_tokens: int,
        ignore_eos: bool = False,
        more: Sequence[int] = (),
    ) -> ReferenceAnswer:
        """The greedy answer to the chat followed by `more` tokens. An end token that ends it is its last token."""
        inputs = {name: _extended(name, value, more) for name, value in self.inputs(messages, images).items()}
        output = self.model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        prompt = inputs["input_ids"][0].tolist()
        tokens = output.sequences[0, len(prompt) :].tolist()
        top = torch.stack([step[0].float() for step in output.logits]).topk(2)
        length = len(tokens) if ignore_eos else _length_to_end(tokens, self._eos)
        margins = (top.values[:length, 0] - top.values[:length, 1]).tolist()
        return ReferenceAnswer(prompt, tokens[:length], margins, top.indices[:length, 1].tolist())


def same_tokens(reference: ReferenceAnswer, token_ids: Sequence[int]) -> bool:
    """Whether `token_ids` is that answer. After a token that was a near tie anything may follow."""
    for index, (ours, theirs) in enumerate(zip(token_ids, reference.token_ids, strict=False)):
        if ours != theirs:
            return reference.margins[index] < MARGIN and ours == reference.runners_up[index]
    return len(token_ids) == len(reference.token_ids)


class _StillQwenProcessor(Qwen2VLProcessor):
    """Qwen's processor without the video processor, which wants torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def _processor(model_dir: Path, tokenizer: Any, config: Any) -> Any:
    images = AutoImageProcessor.from_pretrained(model_dir, backend="pil")
    if config.model_type == "gemma3":
        length = config.mm_tokens_per_image
        return Gemma3Processor(images, tokenizer, tokenizer.chat_template, image_seq_length=length)
    if config.model_type != "llava":
        return _StillQwenProcessor(images, tokenizer, chat_template=tokenizer.chat_template)
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=config.vision_config.patch_size,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        num_additional_image_tokens=1,  # CLIP's class token
        chat_template=tokenizer.chat_template,
    )


def _extended(name: str, value: Tensor, more: Sequence[int]) -> Tensor:
    """A model input with further text tokens; what belongs to pictures stays."""
    rows = {"input_ids": list(more), "attention_mask": [1] * len(more)}
    added = rows.get(name, [0] * len(more) if name.endswith("token_type_ids") else None)
    return value if added is None else torch.cat([value, torch.tensor([added], dtype=value.dtype)], dim=1)


def _length_to_end(tokens: Sequence[int], ends: set[int]) -> int:
    """Tokens up to and including the first that ends an answer."""
    return next((index + 1 for index, token in enumerate(tokens) if token in ends), len(tokens))
