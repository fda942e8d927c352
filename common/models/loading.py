"""Fills a module that was built on the meta device from the tensors of one half of a checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from common.families.checkpoint import one_line
from common.models.headers import StoredTensor
from triptych.errors import CheckpointError

Module = TypeVar("Module")
_STORED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def load_stage(
    module: nn.Module,
    stored: Mapping[str, StoredTensor],
    dtype: torch.dtype,
    device: torch.device,
    *,
    optional: AbstractSet[str] = frozenset(),
) -> None:
    """Give every parameter of `module` its tensor in `dtype` on `device`; ready for inference afterwards.

    Only the tensors in `stored` are read. On the CPU, tensors that need no cast stay mapped from their file, so
    processes on one host share the memory. Names in `optional` may be absent and stay on meta, to be tied.
    Raises CheckpointError naming a tensor that is missing, unknown or of another shape.
    """
    _check_names(module, stored, optional)
    expected = module.state_dict()
    tensors: dict[str, Tensor] = {}
    for name, tensor in _read(stored):
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{stored[name].file}: {stored[name].key} has shape {tuple(tensor.shape)}, "
                f"the config asks for {tuple(expected[name].shape)}"
            )
        if tensor.dtype not in _STORED_DTYPES:
            raise CheckpointError(f"{stored[name].file}: {stored[name].key} is {tensor.dtype}, no plain float")
        tensors[name] = tensor.to(device, dtype)
    module.load_state_dict(tensors, assign=True, strict=False)
    module.requires_grad_(False).eval()
    _restore_buffers(module, device)
    left = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_meta]
    if unfilled := sorted(set(left) - optional):
        raise CheckpointError(f"{unfilled[0]} is in no file and cannot be computed")


def build_empty(model_dir: Path, build: Callable[[], Module]) -> Module:
    """What `build` makes of the config in `model_dir`, without memory for its tensors; raises CheckpointError."""
    try:
        with torch.device("meta"):
            return build()
    # Sizes that do not go together raise anything in transformers and torch, down to ZeroDivisionError.
    except Exception as error:
        raise CheckpointError(f"{model_dir / 'config.json'} describes no model: {one_line(error)}") from error


def resident_bytes(module: nn.Module) -> int:
    """Bytes of all parameters and buffers; tied tensors count once."""
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensors.values())


def _check_names(module: nn.Module, stored: Mapping[str, StoredTensor], optional: AbstractSet[str]) -> None:
    expected = set(module.state_dict()) - optional
    if missing := sorted(expected - set(stored)):
        raise CheckpointError(f"the checkpoint lacks {len(missing)} tensors, among them {missing[0]}")
    if unknown := sorted(set(stored) - expected):
        place = stored[unknown[0]]
        raise CheckpointError(
            f"the config has no place for {len(unknown)} tensors of the checkpoint, "
            f"among them {place.key} in {place.file.name}"
        )


def _read(stored: Mapping[str, StoredTensor]) -> list[tuple[str, Tensor]]:
    """All tensors, opening each file once."""
    by_file: defaultdict[Path, list[str]] = defaultdict(list)
    for name, place in stored.items():
        by_file[place.file].append(name)
    tensors = []
    for file, names in by_file.items():
        try:
            with safe_open(file, framework="pt") as content:
                tensors += [(name, content.get_tensor(stored[name].key)) for name in names]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read the tensors of {file}: {error}") from error
    return tensors


def _restore_buffers(module: nn.Module, device: torch.device) -> None:
    """Recompute what is in no file: rotary frequencies and position indices, left on meta by construction."""
    for model in module.modules():
        if isinstance(model, PreTrainedModel):
            for owner in model.modules():
                _restore_own_buffers(model, owner, device)


def _restore_own_buffers(model: PreTrainedModel, owner: nn.Module, device: torch.device) -> None:
    meta = {name: buffer for name, buffer in owner.named_buffers(recurse=False) if buffer.is_meta}
    if not meta:
        return
    for name, buffer in meta.items():
        setattr(owner, name, torch.zeros_like(buffer, device=device))
    # transformers' own initialiser knows each buffer's formula and leaves flagged tensors alone.
    for parameter in owner.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]
    initialise: Any = model._init_weights
    initialise(owner)
    for name in meta:
        if not getattr(owner, name).any():
            raise CheckpointError(f"{type(owner).__name__}.{name} is in no file and cannot be computed")
