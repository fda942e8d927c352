"""Trains the demo model: first the tower alone on what stands in each cell, then the rest on dialogues.

Run from the repository's root: `python -m models.training.train --work-dir DIR`. Stopped and started again, it goes on
from its last saved step.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from models.training.batches import Batch, build_batch, group_pictures
from models.training.checkpoint import build_model, save_checkpoint
from models.training.dialogues import Dialogue, random_dialogue, small_talk
from models.training.learner import Learner, shares
from models.training.muon import Muon
from models.training.scenes import GRIDS, SMALL_GRIDS, random_scene
from models.training.tower import IGNORED
from models.training.vocabulary import build_tokenizer

PART = 10  # dialogues in one forward pass
MOST_TURNS = 4
EASY_STEPS = 240
CELL_WEIGHT = 0.3
RATES = {"muon": 3e-3, "adamw": 1e-3}


class Ease(TypedDict):
    """How hard the scenes of dialogues are."""

    most: int
    grids: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Plan:
    """How long and how hard to train."""

    work_dir: Path
    tower_steps: int
    steps: int
    batch: int
    save_every: int

    def rate_at(self, step: int) -> float:
        """Share of the full rate: a linear warm-up, then a cosine down to nearly zero, once per phase."""
        start, length = (0, self.tower_steps) if step < self.tower_steps else (self.tower_steps, self.steps)
        cosine = 0.5 * (1 + math.cos(math.pi * (step - start) / length))
        return min(1.0, (step - start + 1) / 50) * (0.02 + 0.98 * cosine)


class Trainer:
    """The learner, its optimiser and the step they are at."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(0)
        self.plan = plan
        self.tokenizer = _tokenizer(plan.work_dir / "tokenizer")
        self.learner = Learner(build_model(self.tokenizer), self.tokenizer)
        self.optimisers = _optimisers(self.learner)
        self.step = 0

    def run(self) -> None:
        """Train to the end of the plan."""
        self._load()
        while self.step < self.plan.tower_steps + self.plan.steps:
            report = self._tower_step() if self.step < self.plan.tower_steps else self._dialogue_step()
            self.step += 1
            if self.step % 20 == 0:
                self._log(report)
            if self.step % self.plan.save_every == 0:
                self._save()
        self._save()

    def _tower_step(self) -> dict[str, float]:
        rng = random.Random(f"tower-{self.step}")
        groups, _ = group_pictures([random_scene(rng, most=12) for _ in range(2 * self.plan.batch)])
        seen, cells = self.learner.see(groups, train_blocks=True)
        loss = self.learner.heads.loss(seen, self.learner.table, cells)
        loss.backward()
        self._update()
        return {"loss": loss.item()} | self.learner.heads.accuracy(seen, self.learner.table, cells)

    def _dialogue_step(self) -> dict[str, float]:
        batches = self._batches(self._dialogues())
        answers = sum(int((batch.labels != IGNORED).sum()) for batch in batches)
        losses, cell_losses = [], []
        for batch in batches:
            states, cell_loss = self.learner(batch)
            wanted = batch.labels[:, 1:]
            logits = self.learner.logits(states[:, :-1][wanted != IGNORED])
            loss = functional.cross_entropy(logits, wanted[wanted != IGNORED], reduction="sum") / answers
            (loss + CELL_WEIGHT * cell_loss / len(batches)).backward()
            losses.append(loss.item())
            cell_losses.append(cell_loss.item() / len(batches))
        self._update()
        return {"loss": sum(losses), "cells": sum(cell_losses)}

    def _dialogues(self) -> list[Dialogue]:
        rng = random.Random(f"dialogues-{self.step}")
        talk = [small_talk(rng, turns=rng.randint(1, 3)) for _ in range(max(1, self.plan.batch // 32))]
        others = range(self.plan.batch - len(talk))
        return talk + [random_dialogue(rng, turns=_turns(rng), **self._ease()) for _ in others]

    def _ease(self) -> Ease:
        """Small pictures of few shapes first: there is less to look through, so looking is learned sooner."""
        done = self.step - self.plan.tower_steps
        if done < EASY_STEPS:
            return {"most": 2 if done < EASY_STEPS / 2 else 3, "grids": SMALL_GRIDS}
        return {"most": 6, "grids": GRIDS}

    def _batches(self, dialogues: list[Dialogue]) -> list[Batch]:
        """Dialogues of like length together, which saves padding; their gradients are summed."""
        ordered = sorted(dialogues, key=Dialogue.size)
        parts = [ordered[at : at + PART] for at in range(0, len(ordered), PART)]
        return [build_batch(part, self.tokenizer, self.learner.model) for part in parts]

    def _update(self) -> None:
        nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        for name, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = RATES[name] * self.plan.rate_at(self.step)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def _validate(self) -> dict[str, float]:
        """Exact answers to questions of which training sees none."""
        rng = random.Random("validation")
        dialogues = sorted((random_dialogue(rng, turns=3) for _ in range(160)), key=Dialogue.size)
        return shares(dialogues, [turns for batch in self._batches(dialogues) for turns in self.learner.exact(batch)])

    def _log(self, report: dict[str, float]) -> None:
        rounded = {name: round(value, 4) for name, value in report.items()}
        print(json.dumps({"step": self.step, "at": time.strftime("%H:%M:%S"), **rounded}), flush=True)

    def _save(self) -> None:
        state = {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()}
        fresh = self.plan.work_dir / "state.new"
        torch.save({**state, "learner": self.learner.state_dict(), "step": self.step}, fresh)
        fresh.replace(self.plan.work_dir / "state.pt")
        if self.step > self.plan.tower_steps:
            self._log(self._validate())
            save_checkpoint(self.learner.model, self.tokenizer, self.plan.work_dir / "checkpoint")

    def _load(self) -> None:
        path = self.plan.work_dir / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.learner.load_state_dict(state["learner"])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state[name])
        self.step = state["step"]


def _turns(rng: random.Random) -> int:
    """One question mostly: in a long dialogue many an answer can be read off earlier turns instead of the picture."""
    return 1 if rng.random() < 0.6 else rng.randint(2, MOST_TURNS)


def _tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """The tokenizer training began with: another one would give the learned ids another meaning."""
    if not directory.exists():
        build_tokenizer().save_pretrained(directory)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(directory)
    return tokenizer


def _optimisers(learner: Learner) -> dict[str, torch.optim.Optimizer]:
    """Muon for the matrices of all layers, AdamW for everything else."""
    model = learner.model.model
    layers = (model.visual.blocks, model.visual.merger, model.language_model.layers)
    matrices = {id(part): part for layer in layers for part in layer.parameters() if part.ndim == 2}
    others = [part for part in learner.parameters() if id(part) not in matrices]
    return {
        "muon": Muon(matrices.values()),
        "adamw": torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01),
    }


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work-dir", type=Path, required=True, help="where state and checkpoint are kept")
    parser.add_argument("--tower-steps", type=int, default=200)
    parser.add_argument("--steps", type=int, default=4200)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Read the flags and train."""
    given = vars(_flags())
    torch.set_num_threads(given.pop("threads"))
    plan = Plan(**given)
    plan.work_dir.mkdir(parents=True, exist_ok=True)
    Trainer(plan).run()


if __name__ == "__main__":
    main()
