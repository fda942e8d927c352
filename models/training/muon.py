"""Muon in fp32: momentum made orthogonal, which needed about half of the steps that AdamW took.

After Keller Jordan's Muon, with the update scaled to the size of AdamW's (Moonlight). torch has one, but it computes in
bf16, which is slow on a CPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest orthogonal matrices (count, rows, columns) by five steps of Newton-Schulz."""
    tall = matrices.shape[1] > matrices.shape[2]
    found: Tensor = matrices.mT if tall else matrices
    found = found / (found.norm(dim=(1, 2), keepdim=True) + 1e-7)
    first, third, fifth = COEFFICIENTS
    for _ in range(5):
        square = found @ found.mT
        found = first * found + (third * square + fifth * square @ square) @ found
    return found.mT if tall else found


class Muon(torch.optim.Optimizer):
    """For matrices only; those of one shape are updated together."""

    def __init__(self, parameters: Iterable[Tensor], rate: float = 1e-3, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all matrices that have a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    shapes[matrix.shape].append((matrix, self._momentum(matrix, matrix.grad, group["momentum"])))
            for shape, pairs in shapes.items():
                updates = orthogonalise(torch.stack([momentum for _, momentum in pairs]))
                for (matrix, _), update in zip(pairs, updates, strict=True):
                    matrix.add_(update, alpha=-group["lr"] * 0.2 * max(shape) ** 0.5)

    def _momentum(self, matrix: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Nesterov's momentum of the gradient."""
        mean: Tensor = self.state[matrix].setdefault("mean", torch.zeros_like(matrix))
        mean.lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum)
