"""A byte-level BPE tokenizer and chat template in the manner of each family, trained on a few sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_SPECIAL = {
    "qwen": {
        "pad": "<|endoftext|>",
        "start": "<|im_start|>",
        "eos": "<|im_end|>",
        "vision_start": "<|vision_start|>",
        "vision_end": "<|vision_end|>",
        "image": "<|image_pad|>",
        "video": "<|video_pad|>",
    },
    "llava": {"unk": "<unk>", "start": "<s>", "eos": "</s>", "image": "<image>", "pad": "<pad>"},
    "gemma3": {
        "pad": "<pad>",
        "start": "<bos>",
        "turn": "<start_of_turn>",
        "eos": "<end_of_turn>",
        "image": "<image_soft_token>",
        "image_start": "<start_of_image>",
        "image_end": "<end_of_image>",
    },
}

_QWEN_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type in ('image', 'image_url') %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'text' %}{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_LLAVA_TEMPLATE = """\
{{- '<s>' }}
{%- for message in messages %}
{{- message.role | upper + ': ' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type in ('image', 'image_url') %}{{- '<image>\\n' }}
{%- elif part.type == 'text' %}{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '</s>' if message.role == 'assistant' else ' ' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}
"""

_GEMMA_TEMPLATE = """\
{{- '<bos>' }}
{%- for message in messages %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{%- if message.content is string %}{{- message.content | trim }}
{%- else %}
{%- for part in message.content %}
{%- if part.type in ('image', 'image_url') %}{{- '<start_of_image>' }}
{%- elif part.type == 'text' %}{{- part.text | trim }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

_TEMPLATES = {"llava": _LLAVA_TEMPLATE, "gemma3": _GEMMA_TEMPLATE}

_CORPUS = [
    "What is in this picture? Describe the image in one sentence.",
    "The cat sits on the red chair near the window, and the dog sleeps under the table.",
    "Compare the first image with the second one and list every difference you can see.",
    "A receipt with four lines: two coffees, a sandwich and a bottle of water.",
]


def save_tokenizer(family: str, directory: Path) -> int:
    """Write tokenizer files and chat template; returns the vocabulary size."""
    special = _special(family)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special.values()],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    saved = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=special["eos"],
        pad_token=special["pad"],
        chat_template=_TEMPLATES.get(family, _QWEN_TEMPLATE),
        **_named(special),
    )
    saved.save_pretrained(directory)
    ids = {use: tokenizer.token_to_id(token) for use, token in special.items()}
    (directory / "special_tokens.json").write_text(json.dumps(ids))
    return int(tokenizer.get_vocab_size())


def special_token_ids(directory: Path) -> dict[str, int]:
    """Ids of the special tokens by their use: "image", "eos", "pad", ..."""
    ids: dict[str, int] = json.loads((directory / "special_tokens.json").read_text())
    return ids


def _special(family: str) -> dict[str, str]:
    return _SPECIAL.get(family, _SPECIAL["qwen"])


def _named(special: dict[str, str]) -> dict[str, Any]:
    """Gemma's processor asks its tokenizer for these by name."""
    if "image_start" not in special:
        return {}
    names = {"image_token": "image", "boi_token": "image_start", "eoi_token": "image_end"}
    return {"extra_special_tokens": {name: special[use] for name, use in names.items()}}
