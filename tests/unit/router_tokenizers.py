"""Tokenizers for tests of the router: the demo's, and one in the manner of SentencePiece with byte fallback."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from services.router.prompts.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "models" / "triptych-demo"
DEMO_IMAGE = 1022
TRIMMING_TEMPLATE = """\
{%- for message in messages %}
{{- '<s>' + message.role + ':' }}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{- '<image>' }}{%- else %}{{- ' ' + part.text | trim }}{%- endif %}
{%- endfor %}
{{- '</s>' }}
{%- endfor %}
{{- '<s>assistant:' }}"""


@cache
def demo_tokenizer() -> Tokenizer:
    """Byte-level BPE with Qwen's special tokens."""
    return Tokenizer.load(DEMO, DEMO_IMAGE)


@cache
def sentencepiece_tokenizer() -> Tokenizer:
    """Words begin with a low line, unknown characters are spelled in bytes, the template trims."""
    pieces = ["<unk>", *(f"<0x{value:02X}>" for value in range(256)), "\u2581", *"abcdehlorstuw:,.!<>/|_"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u2581", "hello"), ("\u2581", "w")]
    vocabulary = list(dict.fromkeys([*pieces, *("".join(pair) for pair in merges)]))
    model = models.BPE(
        {piece: at for at, piece in enumerate(vocabulary)}, merges, unk_token="<unk>", byte_fallback=True
    )
    backend = Backend(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "</s>")])
    # As some checkpoints do: the image token is added but not marked special.
    backend.add_tokens([AddedToken("<image>", normalized=False)])
    pretrained = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TRIMMING_TEMPLATE)
    return Tokenizer(pretrained, backend.get_vocab()["<image>"])
