"""Each half loads its own tensors from every form of checkpoint, and says what is wrong with a bad one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.models.language import LanguageModel
from common.models.tower import Tower
from tests.checkpoints import FAMILIES, CheckpointCache
from tests.integration.chats import CHATS, TOLERANCE
from tests.integration.split_model import CPU, SplitModel
from tests.reference import Reference
from triptych.errors import CheckpointError

FORMS: list[dict[str, Any]] = [
    {"old_names": True},
    {"shards": True},
    {"tie": True},
    {"tie": True, "shards": True, "old_names": True},
]


def load_language(model_dir: Path, dtype: torch.dtype = torch.float32) -> LanguageModel:
    return LanguageModel.load(model_dir, dtype=dtype, device=CPU)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "+".join(form))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_form_loads(checkpoints: CheckpointCache, family: str, form: dict[str, Any]) -> None:
    """Compared with transformers on the plain form, since it reads Qwen3-VL under the new names only."""
    ours, reference = SplitModel(checkpoints.get(family, **form)), Reference(checkpoints.get(family, tie="tie" in form))
    difference = ours.logits([ours.prompt(*CHATS["between"])])[0] - reference.logits(*CHATS["between"])
    assert difference.abs().max() <= TOLERANCE


def tensor_names(half: Tower | LanguageModel) -> list[str]:
    return list(half._module.state_dict())


@pytest.mark.parametrize("family", FAMILIES)
def test_each_half_holds_its_own_tensors_only(checkpoints: CheckpointCache, family: str) -> None:
    model_dir = checkpoints.get(family)
    tower, language = Tower.load(model_dir, torch.float32, CPU), load_language(model_dir)
    seen, read = tensor_names(tower), tensor_names(language)
    assert all(name.startswith(("visual.", "vision_tower.", "multi_modal_projector.")) for name in seen)
    assert all(name.startswith(("model.", "lm_head.")) for name in read)
    assert len(seen) + len(read) == len(load_file(model_dir / "model.safetensors"))


def test_a_tied_head_takes_no_memory(checkpoints: CheckpointCache) -> None:
    tied, own = (load_language(checkpoints.get("qwen2_vl", tie=tie)) for tie in (True, False))
    assert own.resident_bytes - tied.resident_bytes == own.vocab_size * own.hidden_size * 4


def test_shapes_and_ends_for_the_engine(checkpoints: CheckpointCache) -> None:
    model = load_language(checkpoints.get("qwen3_vl", layers=3, eos_token_ids=(40, 41), max_positions=512))
    assert (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim) == (3, 4, 2, 16)
    assert (model.hidden_size, model.max_positions, model.eos_token_ids) == (64, 512, (40, 41))
    assert (model.deepstack_maps, model.dtype, model.device) == (2, torch.float32, CPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stored_half_precision_is_cast(tmp_path: Path, checkpoints: CheckpointCache, dtype: torch.dtype) -> None:
    def cast(tensors: dict[str, Tensor]) -> None:
        tensors |= {name: value.to(dtype) for name, value in tensors.items()}

    model = load_language(edited(checkpoints.get("llava"), tmp_path, cast))
    assert model.dtype == torch.float32
    assert model.embed(torch.arange(5)).dtype == torch.float32


def edited(model_dir: Path, target: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    """A copy of a checkpoint with changed tensors."""
    shutil.copytree(model_dir, target, dirs_exist_ok=True)
    tensors = load_file(target / "model.safetensors")
    edit(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def configured(model_dir: Path, target: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a checkpoint with a changed config."""
    shutil.copytree(model_dir, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    edit(config)
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_a_missing_tensor_is_named(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    name = "model.language_model.layers.1.mlp.up_proj.weight"
    model_dir = edited(checkpoints.get("qwen2_vl"), tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors, among them model\.layers\.1\.mlp\.up_proj\.weight"):
        load_language(model_dir)
    Tower.load(model_dir, torch.float32, CPU)  # the other half does not care


def test_an_untied_head_must_be_there(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    model_dir = edited(checkpoints.get("qwen2_vl"), tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        load_language(model_dir)


def test_a_tensor_without_place_is_named(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    def add(tensors: dict[str, Tensor]) -> None:
        tensors["model.visual.blocks.7.attn.proj.weight"] = torch.zeros(4)

    with pytest.raises(CheckpointError, match=r"no place for 1 .* model\.visual\.blocks\.7\.attn\.proj\.weight"):
        Tower.load(edited(checkpoints.get("qwen2_5_vl"), tmp_path, add), torch.float32, CPU)


def test_recomputed_buffers_in_old_files_are_ignored(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    def add(tensors: dict[str, Tensor]) -> None:
        tensors["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(10)
        tensors["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    SplitModel(edited(checkpoints.get("llava", old_names=True), tmp_path, add))


def test_a_wrong_shape_is_named(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    def shrink(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:100].clone()

    with pytest.raises(
        CheckpointError, match=r"lm_head\.weight has shape \(100, 64\), the config asks for \(340, 64\)"
    ):
        load_language(edited(checkpoints.get("qwen2_vl"), tmp_path, shrink))


def test_integer_weights_are_refused(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    def quantise(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)

    with pytest.raises(CheckpointError, match="no plain float"):
        load_language(edited(checkpoints.get("qwen2_vl"), tmp_path, quantise))


def test_one_tensor_under_two_names_is_refused(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    def double(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.language_model.norm.weight"].clone()

    with pytest.raises(CheckpointError, match=r"holds model\.norm\.weight twice"):
        load_language(edited(checkpoints.get("qwen2_vl"), tmp_path, double))


def test_a_stored_head_wins_over_a_config_that_ties(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    model_dir = configured(
        checkpoints.get("qwen3_vl"), tmp_path, lambda config: config.update(tie_word_embeddings=True)
    )
    ours, reference = SplitModel(model_dir), Reference(model_dir)
    difference = ours.logits([ours.prompt(*CHATS["text"])])[0] - reference.logits(*CHATS["text"])
    assert difference.abs().max() <= TOLERANCE


def test_quantised_checkpoints_are_refused(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    settings = {"quant_method": "awq", "bits": 4}
    model_dir = configured(
        checkpoints.get("qwen2_vl"), tmp_path, lambda config: config.update(quantization_config=settings)
    )
    for load in (load_language, lambda path: Tower.load(path, torch.float32, CPU)):
        with pytest.raises(CheckpointError, match="quantised"):
            load(model_dir)


SIZES: list[tuple[str, dict[str, dict[str, int]], str]] = [
    (
        "width of the text",
        {"text_config": {"hidden_size": 96}},
        "rows are 64 wide, the language model's hidden_size is 96",
    ),
    ("width of the tower", {"vision_config": {"hidden_size": 96}}, "rows are 96 wide, .* hidden_size is 64"),
    ("heads of the tower", {"vision_config": {"num_heads": 3}}, "3 heads do not share"),
    ("no heads", {"text_config": {"num_attention_heads": 0}}, "no attention head"),
    ("heads that do not fit", {"text_config": {"num_attention_heads": 7}}, "describes no model"),
    ("fewer words than the padding's", {"text_config": {"vocab_size": 1, "pad_token_id": 9}}, "describes no model"),
]


@pytest.mark.parametrize(("change", "said"), [case[1:] for case in SIZES], ids=[case[0] for case in SIZES])
def test_sizes_that_do_not_go_together_are_named_with_their_file(
    tmp_path: Path, checkpoints: CheckpointCache, change: dict[str, dict[str, int]], said: str
) -> None:
    def edit(config: dict[str, Any]) -> None:
        for part, values in change.items():
            config[part] |= values

    model_dir = configured(checkpoints.get("qwen2_vl"), tmp_path, edit)
    with pytest.raises(CheckpointError, match=rf"config\.json.* {said}") as caught:
        load_language(model_dir)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("setting", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_attention_that_is_not_computed_is_refused(tmp_path: Path, checkpoints: CheckpointCache, setting: str) -> None:
    model_dir = configured(
        checkpoints.get("gemma3"), tmp_path, lambda config: config["text_config"].update({setting: 30.0})
    )
    with pytest.raises(CheckpointError, match=f"{setting} is not supported"):
        load_language(model_dir)


def test_pan_and_scan_is_refused(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    shutil.copytree(checkpoints.get("gemma3"), tmp_path, dirs_exist_ok=True)
    settings = tmp_path / "preprocessor_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_pan_and_scan": True}))
    with pytest.raises(CheckpointError, match="pan-and-scan"):
        Tower.load(tmp_path, torch.float32, CPU)


def test_rotary_embeddings_that_depend_on_the_batch_are_refused(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model_dir = configured(
        checkpoints.get("llava"), tmp_path, lambda config: config["text_config"].update(rope_parameters=rope)
    )
    with pytest.raises(CheckpointError, match="'dynamic' are not supported"):
        load_language(model_dir)


def test_damaged_files_are_named(tmp_path: Path, checkpoints: CheckpointCache) -> None:
    shutil.copytree(checkpoints.get("qwen2_vl", shards=True), tmp_path, dirs_exist_ok=True)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.safetensors is shorter"):
        load_language(tmp_path)
    shard.write_bytes(b"not a tensor in sight")
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        load_language(tmp_path)
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"has no model-00002-of-00003\.safetensors"):
        load_language(tmp_path)
