"""The model together with its cell heads: one differentiable pass, and how many answers it gets right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, Qwen2VLForConditionalGeneration

from models.training.batches import Batch, Pictures
from models.training.dialogues import Dialogue
from models.training.tower import IGNORED, CellHeads, encode


class Learner(nn.Module):
    """Qwen2-VL and the read-outs that only training needs."""

    def __init__(self, model: Qwen2VLForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model = model
        self.heads = CellHeads(tokenizer, self.table.shape[1])

    @property
    def table(self) -> Tensor:
        """The word embeddings (vocabulary, hidden)."""
        table: Tensor = self.model.model.language_model.embed_tokens.weight
        return table

    def see(self, groups: Sequence[Pictures], *, train_blocks: bool) -> tuple[Tensor, Tensor]:
        """Embeddings (tokens, hidden) of all pictures and their labels (tokens, 4), group after group."""
        visual = self.model.model.visual
        seen = [encode(visual, group.pixels, group.rows, group.cols, train_blocks=train_blocks) for group in groups]
        return (
            torch.cat([part.flatten(0, 1) for part in seen]),
            torch.cat([group.cells.flatten(0, 1) for group in groups]),
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Last hidden states (batch, length, hidden) and the loss of the cell heads."""
        embeddings: Tensor = self.model.get_input_embeddings()(batch.ids)
        cell_loss = torch.zeros(())
        if batch.groups:
            seen, cells = self.see(batch.groups, train_blocks=False)
            slots = torch.cat([part.flatten() for part in batch.slots])
            embeddings = embeddings.flatten(0, 1).index_copy(0, slots, seen).view_as(embeddings)
            cell_loss = self.heads.loss(seen, self.table, cells)
        out = self.model.model.language_model(
            inputs_embeds=embeddings,
            position_ids=batch.positions,
            attention_mask={"full_attention": None},  # causal; the padding is on the right
            use_cache=False,
        )
        return out.last_hidden_state, cell_loss

    def logits(self, states: Tensor) -> Tensor:
        """Scores of the next token (..., vocabulary)."""
        scores: Tensor = self.model.lm_head(states)
        return scores

    @torch.no_grad()
    def exact(self, batch: Batch) -> list[list[bool]]:
        """Per dialogue and turn, whether greedy decoding would give the answer exactly.

        It would if, after every right beginning of the answer, the likeliest token is the right one.
        """
        states, _ = self(batch)
        wanted = batch.labels[:, 1:]
        right = self.logits(states[:, :-1]).argmax(-1) == wanted
        return [_turns(row, hits) for row, hits in zip(wanted.tolist(), right.tolist(), strict=True)]


def _turns(wanted: list[int], right: list[bool]) -> list[bool]:
    """One entry per run of labels: whether all of the run is right."""
    turns: list[bool] = []
    before = IGNORED
    for label, hit in zip(wanted, right, strict=True):
        if label != IGNORED and before == IGNORED:
            turns.append(hit)
        elif label != IGNORED:
            turns[-1] = turns[-1] and hit
        before = label
    return turns


def shares(dialogues: Sequence[Dialogue], exact: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Share of exact answers per kind of question, and of all."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for dialogue, turns in zip(dialogues, exact, strict=True):
        for question, hit in zip(dialogue.questions, turns, strict=True):
            asked.update((question.kind, "all"))
            right.update(dict.fromkeys((question.kind, "all"), int(hit)))
    return {kind: round(right[kind] / count, 3) for kind, count in sorted(asked.items())}
