"""A request after admission: everything the stages need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from triptych.v1.encoder_pb2 import EncodeImage
from triptych.v1.types_pb2 import Prompt, SamplingParams
from triptych.v1.worker_pb2 import WorkerInfo


@dataclass(frozen=True)
class Job:
    """`images` are the distinct pictures, `encoders` the replicas whose embeddings have the keys in `prompt`.

    `names` gives for each image id what the client called the picture. `deadline` is on the event loop's clock, in
    seconds.
    """

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    images: tuple[EncodeImage, ...]
    encoders: tuple[WorkerInfo, ...]
    deadline: float
    names: Mapping[str, str]

    def remaining_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - asyncio.get_running_loop().time()

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt.token_ids)
