"""The language half: token embeddings, decoder layers and head of a vision-language checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from common.families.checkpoint import read_config
from common.models.attention import ATTENTION_NAME, Attention, register_attention
from common.models.fingerprint import model_fingerprint
from common.models.loading import build_empty, load_stage, resident_bytes
from common.models.settings import TextSettings
from common.models.weights import Stage, stored_tensors
from triptych.errors import FailedPreconditionError


@dataclass(frozen=True)
class VisualInputs:
    """DeepStack (arXiv 2406.04334): maps that Qwen3-VL adds to the image rows after its first layers.

    `rows` is int64 (k,), the image rows of the packed batch in ascending order; each map is (k, hidden).
    """

    rows: Tensor
    deepstack: tuple[Tensor, ...]


class LanguageModule(nn.Module):
    """The text model and its head, under the names of `weights`."""

    def __init__(self, text_config: Any) -> None:
        super().__init__()
        make: Any = AutoModel.from_config
        self.model: PreTrainedModel = make(text_config, attn_implementation=ATTENTION_NAME)
        self.lm_head = nn.Linear(text_config.hidden_size, text_config.vocab_size, bias=False)

    @property
    def embedding(self) -> nn.Embedding:
        """The token embeddings, (vocabulary, hidden)."""
        embedding: nn.Embedding = self.model.get_input_embeddings()  # type: ignore[assignment]
        return embedding

    def tie(self) -> None:
        """Use the token embeddings as the head."""
        self.lm_head.weight = self.embedding.weight


class LanguageModel:
    """A loaded language half. It keeps no state between calls, so calls from several threads are independent."""

    def __init__(self, module: LanguageModule, settings: TextSettings, fingerprint: str) -> None:
        self._module = module
        self._settings = settings
        self.fingerprint = fingerprint
        self.num_layers = settings.num_layers
        self.num_heads = settings.num_heads
        self.num_kv_heads = settings.num_kv_heads
        self.head_dim = settings.head_dim
        self.hidden_size = settings.hidden_size
        self.vocab_size = settings.vocab_size
        self.max_positions = settings.max_positions
        self.eos_token_ids = settings.eos_token_ids
        self.deepstack_maps = settings.deepstack_maps
        self.dtype: torch.dtype = module.lm_head.weight.dtype
        self.device: torch.device = module.lm_head.weight.device
        self.resident_bytes = resident_bytes(module)

    @classmethod
    def load(cls, model_dir: Path, *, dtype: torch.dtype, device: torch.device) -> LanguageModel:
        """Read the language tensors of `model_dir` and no others; raises CheckpointError."""
        config = read_config(model_dir)
        settings = TextSettings.of(config, model_dir)
        stored = stored_tensors(model_dir, Stage.LANGUAGE)
        register_attention()
        module = build_empty(model_dir, lambda: LanguageModule(config.text_config))
        head_is_absent = settings.tied and "lm_head.weight" not in stored
        load_stage(module, stored, dtype, device, optional={"lm_head.weight"} if head_is_absent else frozenset())
        # A head stored beside a config that says "tied" wins if it differs: transformers decides the same.
        if head_is_absent or (settings.tied and torch.equal(module.embedding.weight, module.lm_head.weight)):
            module.tie()
        return cls(module, settings, model_fingerprint(model_dir, Stage.LANGUAGE))

    @torch.no_grad()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings (T, hidden) of int64 token ids (T,)."""
        embeddings: Tensor = self._module.embedding(token_ids.to(self.device))
        return embeddings

    @torch.no_grad()
    def forward(self, embeds: Tensor, positions: Tensor, visual: VisualInputs | None, attention: Attention) -> Tensor:
        """Run T packed tokens of any number of sequences through all layers.

        `embeds` is (T, hidden), `positions` int64 (rows, T) as in `Positions.ids`; `attention` alone knows the
        sequences. Returns the normalised hidden states (T, hidden).
        """
        positions = positions.to(self.device)
        outputs = self._module.model(
            inputs_embeds=embeds.to(self.device, self.dtype)[None],
            position_ids=positions[:, None] if len(positions) > 1 else positions,
            use_cache=False,
            triptych_attention=attention,
            **self._visual_arguments(visual, len(embeds)),
        )
        hidden: Tensor = outputs.last_hidden_state[0]
        return hidden

    def _visual_arguments(self, visual: VisualInputs | None, length: int) -> dict[str, Any]:
        if visual is None or not visual.deepstack or not len(visual.rows):
            return {}
        if len(visual.deepstack) != self.deepstack_maps:
            raise FailedPreconditionError(
                f"the images bring {len(visual.deepstack)} DeepStack maps, this model takes {self.deepstack_maps}"
            )
        mask = torch.zeros(1, length, dtype=torch.bool, device=self.device)
        mask[0, visual.rows.to(self.device)] = True
        return {"visual_pos_masks": mask, "deepstack_visual_embeds": list(visual.deepstack)}

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits (n, vocabulary) of hidden states (n, hidden)."""
        logits: Tensor = self._module.lm_head(hidden)
        return logits.float()
