"""Which tensors of a checkpoint belong to which half, whatever they are called in its files.

Names come in two spellings. Before transformers 5: `visual.*`, `model.layers.*`, `lm_head.*`, and for LLaVA
`vision_tower.vision_model.*`, `language_model.model.*`. Since then: `model.visual.*`, `model.language_model.*`.
Imports no torch.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from common.models.headers import StoredTensor, read_headers
from triptych.errors import CheckpointError


class Stage(StrEnum):
    """A half of the model."""

    TOWER = "tower"
    LANGUAGE = "language"


# First match wins. The replacement is the name inside the modules of `vision` and `language`.
_RULES = (
    (Stage.TOWER, re.compile(r"^(?:model\.)?visual\."), "visual."),
    (Stage.TOWER, re.compile(r"^(?:model\.)?vision_tower\.(?:vision_model\.)?"), "vision_tower."),
    (Stage.TOWER, re.compile(r"^(?:model\.)?multi_modal_projector\."), "multi_modal_projector."),
    (Stage.LANGUAGE, re.compile(r"^(?:language_model\.)?lm_head\."), "lm_head."),
    (Stage.LANGUAGE, re.compile(r"^(?:model\.)?language_model\.(?:model\.)?"), "model."),
    (Stage.LANGUAGE, re.compile(r"^model\."), "model."),
)

# Buffers that old versions of transformers saved although they follow from the config.
_RECOMPUTED = re.compile(r"(rotary_emb\.inv_freq|embeddings\.position_ids)$")


def stored_tensors(model_dir: Path, stage: Stage) -> dict[str, StoredTensor]:
    """Our name -> place of every tensor that `stage` reads, by name; raises CheckpointError."""
    found: dict[str, StoredTensor] = {}
    for key, tensor in sorted(read_headers(model_dir).items()):
        owner, name = _classify(key)
        if owner is not stage or _RECOMPUTED.search(key):
            continue
        if name in found:
            raise CheckpointError(f"{model_dir} holds {name} twice: as {found[name].key} and as {key}")
        found[name] = tensor
    return dict(sorted(found.items()))


def _classify(key: str) -> tuple[Stage | None, str]:
    for stage, pattern, replacement in _RULES:
        name, hits = pattern.subn(replacement, key)
        if hits:
            return stage, name
    return None, key
