"""A request after admission: everything the stages need."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from common.identity.blocks import prompt_chain
from common.store.images import StoredImage
from services.router.placing.scores import Work
from triptych.digests import raw_digest
from triptych.v1.encoder_pb2 import EncodeImage
from triptych.v1.types_pb2 import Prompt, SamplingParams
from triptych.v1.worker_pb2 import WorkerInfo

Hashes = dict[tuple[str, bytes], tuple[bytes, ...]]


@dataclass(frozen=True)
class Job:
    """`images` are the distinct pictures, `encoders` the replicas whose embeddings have the keys in `prompt`.

    `request_id` is what workers know it by. `names` gives for each image id what the client called the picture,
    `pictures` what is known under that name. `deadline` is on the event loop's clock, in seconds. `tenant`, `weight`
    and `priority` decide its place in the queue.
    """

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    images: tuple[EncodeImage, ...]
    encoders: tuple[WorkerInfo, ...]
    deadline: float
    names: Mapping[str, str]
    pictures: dict[str, StoredImage] = field(default_factory=dict)
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    _hashes: Hashes = field(default_factory=dict, repr=False, compare=False)

    def remaining_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - asyncio.get_running_loop().time()

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, with the tokens of the answer that the client has already."""
        return len(self.prompt.token_ids)

    @property
    def most_tokens(self) -> int:
        """What prompt and answer can reach together."""
        return self.prompt_tokens - self.prompt.generated + self.sampling.max_tokens

    @cached_property
    def token_ids(self) -> array[int]:
        """Of the prompt, as unsigned 32-bit numbers: taking a thousand out of a message is not free."""
        return array("I", self.prompt.token_ids)

    @cached_property
    def content(self) -> bytes:
        """Digest of what the model is asked to do: the same for every repetition of a request."""
        ids = self.token_ids.tobytes()
        keys = "".join(span.embedding_key for span in self.prompt.images)
        grammar = self.sampling.grammar.SerializeToString(deterministic=True)
        return raw_digest("triptych.request.v1", self.prompt.cache_scope.encode(), ids, keys.encode(), grammar)

    def work(self) -> Work:
        """What placement must know."""
        return Work(self.prompt_tokens, self.most_tokens, self.hashes)

    def hashes(self, info: WorkerInfo) -> tuple[bytes, ...]:
        """Block hashes of the prompt as `info` computes them; once for each model and KV layout."""
        key = (info.model_fingerprint, info.layout.SerializeToString(deterministic=True))
        if key not in self._hashes:
            chain = prompt_chain(self.prompt, info.model_fingerprint, info.layout)
            chain.extend(self.token_ids)
            self._hashes[key] = tuple(chain.hashes)
        return self._hashes[key]

    def resumed(self, emitted: Sequence[int], attempt: int) -> Job:
        """The rest of the job once the client has `emitted`: they become part of the prompt, marked as generated.

        Each but the first `attempt`, 0, has a name of its own: its leases must not end when those of an earlier one do.
        """
        if not attempt:
            return self
        again = replace(self, request_id=f"{self.request_id}.{attempt}")
        return again._behind(emitted) if emitted else again

    def _behind(self, emitted: Sequence[int]) -> Job:
        prompt = Prompt()
        prompt.CopyFrom(self.prompt)
        prompt.token_ids.extend(emitted)
        prompt.generated = len(emitted)
        return replace(self, prompt=prompt, _hashes={})
