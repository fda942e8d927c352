"""The state of one request inside a worker: its tokens, their positions, its blocks and how far it is computed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.engine.layout import blocks_for
from common.engine.sampling import SamplingParams
from common.identity.blocks import BlockChain
from triptych.errors import InternalError, InvalidArgumentError

if TYPE_CHECKING:
    from common.families.base import ImageSpan, Positions
    from common.grammar import GrammarState


@dataclass(eq=False, slots=True)
class Sequence:
    """Tokens 0..num_computed-1 have their KV in `block_table`; the rest is still to be computed.

    `positions` are the prompt's, from the family, with the position that follows them. `output_ids` may start filled:
    a worker that takes over a broken stream gets the tokens the client already has, and they count as output for
    penalties, seeds and limits. `num_given` counts what was there at the beginning, prompt and such tokens: what
    prefill computes. With `whole_images` the tokens of an image attend to each other both ways: no chunk and no reused
    prefix may end inside one. `chain` names the blocks for the prefix cache; without it nothing is shared.
    `grammar` is the answer's language, at the answer's start. Add tokens by `append` only. Raises InvalidArgumentError
    for an empty prompt and for random sampling without a seed.
    """

    request_id: str
    prompt_ids: list[int]
    positions: Positions
    params: SamplingParams
    images: tuple[ImageSpan, ...] = ()
    whole_images: bool = False
    output_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0
    chain: BlockChain | None = None
    grammar: GrammarState | None = None
    num_given: int = field(init=False)
    _counts: dict[int, int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise InvalidArgumentError("the prompt has no tokens", param="messages")
        if not self.params.greedy and self.params.seed is None:
            raise InvalidArgumentError("random sampling needs a seed", param="seed")
        if self.positions.ids.shape[-1] != len(self.prompt_ids):
            raise InternalError(f"{self.positions.ids.shape[-1]} positions for {len(self.prompt_ids)} prompt tokens")
        self.num_given = self.num_tokens

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_ids)

    @property
    def num_outputs(self) -> int:
        """Tokens of the answer so far, those of an earlier worker included."""
        return len(self.output_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer together."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV is not there yet; 1 between two decode steps."""
        return self.num_tokens - self.num_computed

    @property
    def token_counts(self) -> dict[int, int]:
        """How often each token of prompt or output occurs in the output (0: only in the prompt). Do not change it."""
        if self._counts is None:
            self._counts = dict.fromkeys(self.prompt_ids, 0) | Counter(self.output_ids)
        return self._counts

    def allowed_tokens(self) -> bytes | None:
        """See `SamplingState`."""
        return None if self.grammar is None else self.grammar.allowed(self.output_ids) or b""

    def append(self, token_id: int) -> None:
        """Add one generated token."""
        self.output_ids.append(token_id)
        if self._counts is not None:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1

    def token_ids(self, start: int, end: int) -> list[int]:
        """Tokens start..end-1 of prompt and output."""
        if end <= self.num_prompt:
            return self.prompt_ids[start:end]
        outputs = self.output_ids[max(0, start - self.num_prompt) : end - self.num_prompt]
        return self.prompt_ids[start:] + outputs

    def position_ids(self, start: int, end: int) -> NDArray[np.int64]:
        """Positions of tokens start..end-1, (rows, end - start); after the prompt all rows count up together."""
        prompt = self.positions.ids[:, start : min(end, self.num_prompt)]
        first, last = max(start - self.num_prompt, 0), max(end - self.num_prompt, 0)
        if first == last:
            return prompt
        after = np.arange(self.positions.next + first, self.positions.next + last, dtype=np.int64)
        return np.concatenate([prompt, np.broadcast_to(after, (prompt.shape[0], last - first))], axis=1)

    @property
    def uncut(self) -> tuple[ImageSpan, ...]:
        """The images that must be computed as a whole."""
        return self.images if self.whole_images else ()

    def missing_blocks(self, end: int, block_size: int) -> int:
        """Blocks to allocate before tokens up to `end` can be computed."""
        return max(0, blocks_for(end, block_size) - len(self.block_table))
