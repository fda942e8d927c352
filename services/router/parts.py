"""Loads what the router needs of a checkpoint; no tensors among it."""

from __future__ import annotations

from dataclasses import dataclass

from common.families import Family, load_family
from common.families.checkpoint import config_fingerprint
from services.router.defaults import AnswerDefaults, load_defaults
from services.router.prompts.rendering import Renderer
from services.router.prompts.tokenizer import Tokenizer
from services.router.settings import RouterSettings
from triptych.v1.router_pb2 import ModelCard, RouterInfo
from triptych.version import VERSION


@dataclass(frozen=True)
class Parts:
    """The torch-free side of a model."""

    family: Family
    tokenizer: Tokenizer
    renderer: Renderer
    defaults: AnswerDefaults
    card: ModelCard
    info: RouterInfo


def load_parts(settings: RouterSettings) -> Parts:
    """Read the model directory; CheckpointError or ConfigError when it cannot be served so."""
    family = load_family(settings.model)
    tokenizer = Tokenizer.load(settings.model, family.image_token_id)
    defaults = load_defaults(settings.model, settings.context_length, settings.default_max_tokens)
    card = ModelCard(
        name=settings.served_name,
        family=family.name,
        context_length=defaults.context_length,
        max_images=settings.max_images,
    )
    info = RouterInfo(
        version=VERSION,
        model=card.name,
        config_fingerprint=config_fingerprint(settings.model),
        preprocessing_fingerprint=family.preprocessing_fingerprint,
    )
    renderer = Renderer(tokenizer, family.image_token_id, family.image_markup)
    return Parts(family, tokenizer, renderer, defaults, card, info)
