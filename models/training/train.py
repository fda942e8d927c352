"""Trains the demo model: first the tower alone on what stands in each cell, then everything on dialogues.

Run from the repository's root: `python -m models.training.train --work-dir DIR`. Stopped and started again, it goes on
from its last saved step.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, Qwen2VLForConditionalGeneration

from models.training.batches import Batch, build_batch, group_pictures
from models.training.checkpoint import build_model, save_checkpoint
from models.training.questions import Dialogue, random_dialogue, small_talk
from models.training.scenes import random_scene
from models.training.tower import IGNORED, CellHeads, encode
from models.training.vocabulary import build_tokenizer

PART = 16  # dialogues in one forward pass


@dataclass(frozen=True)
class Plan:
    """How long and how hard to train."""

    work_dir: Path
    out_dir: Path
    tower_steps: int
    steps: int
    batch: int
    rate: float
    cell_weight: float
    save_every: int

    def rate_at(self, step: int) -> float:
        """Linear warm-up, then a cosine down to zero, once per phase."""
        start, length = (0, self.tower_steps) if step < self.tower_steps else (self.tower_steps, self.steps)
        done = (step - start) / length
        return self.rate * min(1.0, (step - start + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


class Trainer:
    """The model, its cell heads and their optimiser."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(0)
        self.plan = plan
        self.tokenizer: PreTrainedTokenizerBase = build_tokenizer()
        self.model: Qwen2VLForConditionalGeneration = build_model(build_tokenizer())
        self.heads = CellHeads(self.model.config.text_config.hidden_size)
        self.parameters = [*self.model.parameters(), *self.heads.parameters()]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.01)
        self.step = 0

    def run(self) -> None:
        """Train to the end of the plan."""
        self._load()
        started = time.monotonic()
        while self.step < self.plan.tower_steps + self.plan.steps:
            tower = self.step < self.plan.tower_steps
            report = self._tower_step() if tower else self._dialogue_step()
            self.step += 1
            if self.step % 20 == 0:
                print(json.dumps({"step": self.step, "s": round(time.monotonic() - started), **report}), flush=True)
            if self.step % self.plan.save_every == 0:
                self._save(export=not tower)
        self._save(export=True)

    def _tower_step(self) -> dict[str, float]:
        rng = random.Random(f"tower-{self.step}")
        groups, _ = group_pictures([random_scene(rng, most=12) for _ in range(self.plan.batch)])
        found = torch.cat([self._encode(group.pixels, group.rows, group.cols).flatten(0, 1) for group in groups])
        cells = torch.cat([group.cells.flatten(0, 1) for group in groups])
        loss = self.heads.loss(found, cells)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._update()
        return {"loss": _short(loss), **{name: round(share, 3) for name, share in self.heads.accuracy(found, cells).items()}}

    def _dialogue_step(self) -> dict[str, float]:
        batches = [build_batch(part, self.tokenizer, self.model) for part in self._parts(self._dialogues())]
        answers = sum(int((batch.labels != IGNORED).sum()) for batch in batches)
        self.optimiser.zero_grad(set_to_none=True)
        answer_loss = cell_loss = right = 0.0
        for batch in batches:
            states, cells = self.forward(batch)
            wanted = batch.labels[:, 1:]
            chosen = wanted != IGNORED
            logits = self.model.lm_head(states[:, :-1][chosen])
            loss = functional.cross_entropy(logits, wanted[chosen], reduction="sum") / answers
            cells = cells / len(batches)
            (loss + self.plan.cell_weight * cells).backward()
            answer_loss += loss.item()
            cell_loss += cells.item()
            right += int((logits.argmax(-1) == wanted[chosen]).sum()) / answers
        self._update()
        return {"answers": round(answer_loss, 4), "cells": round(cell_loss, 4), "tokens_right": round(right, 3)}

    def _parts(self, dialogues: list[Dialogue]) -> list[list[Dialogue]]:
        """Dialogues of like length together, which saves padding; their gradients are summed."""
        ordered = sorted(dialogues, key=Dialogue.size)
        return [ordered[at : at + PART] for at in range(0, len(ordered), PART)]

    def _dialogues(self) -> list[Dialogue]:
        rng = random.Random(f"dialogues-{self.step}")
        talk = [small_talk(rng, turns=rng.randint(1, 3)) for _ in range(max(1, self.plan.batch // 32))]
        return talk + [random_dialogue(rng, turns=rng.randint(1, 6)) for _ in range(self.plan.batch - len(talk))]

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Last hidden states (batch, length, hidden) and the loss of the cell heads."""
        embeddings = self.model.get_input_embeddings()(batch.ids)
        flat = embeddings.flatten(0, 1)
        found, cells = [], []
        for group, slots in zip(batch.groups, batch.slots, strict=True):
            seen = self._encode(group.pixels, group.rows, group.cols).flatten(0, 1)
            flat = flat.index_copy(0, slots.flatten(), seen)
            found.append(seen)
            cells.append(group.cells.flatten(0, 1))
        language_model = self.model.model.language_model
        out = language_model(
            inputs_embeds=flat.view_as(embeddings),
            position_ids=batch.positions,
            attention_mask={"full_attention": None},  # causal; the padding is on the right
            use_cache=False,
        )
        return out.last_hidden_state, self.heads.loss(torch.cat(found), torch.cat(cells))

    def _encode(self, pixels: Tensor, rows: int, cols: int) -> Tensor:
        return encode(self.model.model.visual, pixels, rows, cols)

    def _update(self) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.rate_at(self.step)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()

    @torch.no_grad()
    def scores(self, dialogues: list[Dialogue]) -> dict[str, float]:
        """Share of exact answers per kind, all turns counted; an answer is exact where greedy decoding would find it."""
        batch = build_batch(dialogues, self.tokenizer, self.model)
        states, _ = self.forward(batch)
        wanted = batch.labels[:, 1:]
        right = (self.model.lm_head(states[:, :-1]).argmax(-1) == wanted) | (wanted == IGNORED)
        counts: Counter[str] = Counter()
        hits: Counter[str] = Counter()
        for dialogue, rights, wants in zip(dialogues, right, wanted, strict=True):
            starts = ((wants[1:] != IGNORED) & (wants[:-1] == IGNORED)).nonzero().flatten() + 1
            for question, at in zip(dialogue.questions, starts.tolist(), strict=True):
                stop = at + int((wants[at:] == IGNORED).float().argmax()) if (wants[at:] == IGNORED).any() else None
                counts[question.kind] += 1
                hits[question.kind] += bool(rights[at:stop].all())
        shares = {kind: round(hits[kind] / count, 3) for kind, count in sorted(counts.items())}
        return {"all": round(hits.total() / counts.total(), 3), **shares}

    def _save(self, *, export: bool) -> None:
        state = {"model": self.model.state_dict(), "heads": self.heads.state_dict(), "step": self.step}
        fresh = self.plan.work_dir / "state.new"
        torch.save({**state, "optimiser": self.optimiser.state_dict()}, fresh)
        fresh.replace(self.plan.work_dir / "state.pt")
        if export:
            rng = random.Random("validation")
            scores = self.scores([random_dialogue(rng, turns=3) for _ in range(100)])
            print(json.dumps({"step": self.step, "validation": scores}), flush=True)
            save_checkpoint(self.model, self.plan.out_dir)

    def _load(self) -> None:
        path = self.plan.work_dir / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step = state["step"]


def _short(value: Tensor) -> float:
    return round(value.item(), 4)


def _plan() -> tuple[Plan, int]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work-dir", type=Path, required=True, help="where the training state is kept")
    parser.add_argument("--out-dir", type=Path, help="where checkpoints are written (default: WORK_DIR/checkpoint)")
    parser.add_argument("--tower-steps", type=int, default=800)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--cell-weight", type=float, default=0.3)
    parser.add_argument("--save-every", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    given = vars(parser.parse_args())
    threads = given.pop("threads")
    given["out_dir"] = given["out_dir"] or given["work_dir"] / "checkpoint"
    return Plan(**given), threads


def main() -> None:
    """Read the flags and train."""
    plan, threads = _plan()
    torch.set_num_threads(threads)
    plan.work_dir.mkdir(parents=True, exist_ok=True)
    Trainer(plan).run()


if __name__ == "__main__":
    main()
