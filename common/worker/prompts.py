"""Wire messages to engine types and back."""

from __future__ import annotations

from dataclasses import astuple

from common.engine.sampler import SampledToken
from common.engine.sampling import SamplingParams
from common.engine.sequence import Sequence
from common.families.base import ImageSpan
from common.grammar import GrammarState, Language
from common.identity.blocks import BlockChain, KeyedSpan, block_root
from common.kv.wire import LAYOUT_VERSION
from common.worker.parts import Parts
from triptych.digests import check_digest
from triptych.errors import InvalidArgumentError
from triptych.v1 import types_pb2

_OPTIONAL = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)


def to_params(sampling: types_pb2.SamplingParams) -> SamplingParams:
    """Checked sampling settings; fields that the router left unset take the engine's defaults."""
    given = {field.name: value for field, value in sampling.ListFields()}
    return SamplingParams(
        **{name: given[name] for name in _OPTIONAL if name in given},
        stop_token_ids=frozenset(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        sample_index=sampling.choice_index,
        logprobs=given.get("top_logprobs"),
    )


def to_sequence(
    request_id: str, prompt: types_pb2.Prompt, sampling: types_pb2.SamplingParams, parts: Parts
) -> Sequence:
    """A sequence ready to be scheduled, with the answer so far if it began elsewhere.

    InvalidArgumentError for spans, token ids or counts that make no sense.
    """
    token_ids = list(prompt.token_ids)
    length = len(token_ids) - prompt.generated
    spans = [ImageSpan(span.offset, span.length, tuple(span.grid)) for span in prompt.images]
    _check(token_ids, spans, length, parts.model.vocab_size)
    params = _params(sampling, prompt.generated)
    return Sequence(
        request_id=request_id,
        prompt_ids=token_ids[:length],
        positions=parts.family.positions(length, spans),
        params=params,
        images=tuple(spans),
        whole_images=not parts.family.image_attention_is_causal,
        output_ids=token_ids[length:],
        chain=_chain(prompt, parts),
        grammar=_grammar(sampling, parts),
    )


async def prepare_grammar(sampling: types_pb2.SamplingParams, parts: Parts) -> None:
    """Compile the request's grammar, if any, off the event loop, so that `to_sequence` finds it ready.

    InvalidArgumentError for one that cannot be enforced.
    """
    if sampling.HasField("grammar"):
        await parts.grammars.prepare(Language.of(sampling.grammar))


def _grammar(sampling: types_pb2.SamplingParams, parts: Parts) -> GrammarState | None:
    return parts.grammars.state(Language.of(sampling.grammar)) if sampling.HasField("grammar") else None


def _chain(prompt: types_pb2.Prompt, parts: Parts) -> BlockChain:
    layout = parts.cache.layout
    root = block_root(parts.model.fingerprint, (LAYOUT_VERSION, *astuple(layout)), prompt.cache_scope)
    images = [
        KeyedSpan(span.offset, span.length, check_digest(span.embedding_key, "prompt.images")) for span in prompt.images
    ]
    return BlockChain(root, layout.block_size, images)


def _params(sampling: types_pb2.SamplingParams, generated: int) -> SamplingParams:
    params = to_params(sampling)
    # All of them may be there: what was lost then is the finish.
    if generated > params.max_tokens:
        raise InvalidArgumentError(
            f"{generated} of at most {params.max_tokens} tokens are there already", param="prompt.generated"
        )
    return params


def _check(token_ids: list[int], spans: list[ImageSpan], length: int, vocab_size: int) -> None:
    if length < 0:
        raise InvalidArgumentError("more tokens are generated than there are", param="prompt.generated")
    if any(token >= vocab_size for token in token_ids):
        raise InvalidArgumentError(f"a token id is not below the vocabulary's {vocab_size}", param="prompt.token_ids")
    end = 0
    for span in spans:
        if span.offset < end or span.length < 1 or span.offset + span.length > length:
            raise InvalidArgumentError("image spans overlap or leave the prompt", param="prompt.images")
        end = span.offset + span.length


def to_generated(token: SampledToken) -> types_pb2.GeneratedToken:
    """Wire form of a sampled token."""
    top = [types_pb2.TokenChoice(token_id=token_id, logprob=value) for token_id, value in token.top_logprobs]
    return types_pb2.GeneratedToken(token_id=token.token_id, logprob=token.logprob, top=top)


def from_generated(token: types_pb2.GeneratedToken) -> SampledToken:
    """Inverse of `to_generated`."""
    return SampledToken(token.token_id, token.logprob, tuple((each.token_id, each.logprob) for each in token.top))
