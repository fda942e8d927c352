"""The workers that this router can use, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from triptych.v1.worker_pb2 import WorkerInfo, WorkerRole

NAMES: dict[WorkerRole.ValueType, str] = {
    WorkerRole.WORKER_ROLE_ENCODER: "encoder",
    WorkerRole.WORKER_ROLE_PREFILL: "prefill",
    WorkerRole.WORKER_ROLE_DECODE: "decode",
}
REVISION_DIGITS = 12


class Cluster:
    """A view of the registry for one model; asks `workers` afresh each time, holds nothing. `lost` ones do not count.

    Left out are workers whose config.json has another fingerprint than ours (`config`; old versions tell none), which
    serve something else under the same name, and encoders with another image processor (`preprocessing`): their
    embeddings would have other lengths than the placeholders in our prompts.
    """

    def __init__(
        self,
        workers: Callable[[], Sequence[WorkerInfo]],
        model: str,
        config: str,
        preprocessing: str,
        lost: Callable[[WorkerInfo], bool] = lambda info: False,
    ) -> None:
        self._workers, self._model, self._lost = workers, model, lost
        self._config, self._preprocessing = config, preprocessing

    def known(self) -> list[WorkerInfo]:
        """All workers of the model, whether they take work or not."""
        return [info for info in self._workers() if info.model == self._model]

    def others(self) -> list[WorkerInfo]:
        """Workers of other models, which are none of our business but may have been meant for us."""
        return [info for info in self._workers() if info.model != self._model]

    def ready(self, role: WorkerRole.ValueType) -> list[WorkerInfo]:
        """Workers of `role` that take new work."""
        return [info for info in self._workers() if info.role == role and self._usable(info)]

    def missing(self) -> list[str]:
        """What a request with pictures would lack now, one sentence each; empty when the cluster is ready."""
        sentences = [self.lacks(role) for role in NAMES if not self.ready(role)]
        if not sentences and not self._paired():
            sentences.append("no prefill worker fits a decode worker")
        return sentences

    def degraded(self) -> list[str]:
        """What workers of the model complain of, one sentence each."""
        return [
            f"{NAMES[info.role]} {info.address}: {sentence}"
            for info in self.known()
            for sentence in info.degraded
            if info.role in NAMES
        ]

    def revision(self) -> str:
        """Beginning of the fingerprint of the weights that decode; "none" while no worker does."""
        decodes = (info for info in self.known() if info.role == WorkerRole.WORKER_ROLE_DECODE)
        return next((info.model_fingerprint[:REVISION_DIGITS] for info in decodes), "none")

    def lacks(self, role: WorkerRole.ValueType) -> str:
        """Why there is no worker of `role`."""
        return f"no {NAMES[role]} worker of model {self._model} is ready"

    def _usable(self, info: WorkerInfo) -> bool:
        encoder = info.role == WorkerRole.WORKER_ROLE_ENCODER
        fits = not encoder or info.preprocessing_fingerprint == self._preprocessing
        ours = info.model == self._model and info.config_fingerprint in ("", self._config)
        return fits and ours and not info.draining and not self._lost(info)

    def _paired(self) -> bool:
        decodes = self.ready(WorkerRole.WORKER_ROLE_DECODE)
        return any(fit(prefill, decode) for prefill in self.ready(WorkerRole.WORKER_ROLE_PREFILL) for decode in decodes)


def fit(prefill: WorkerInfo, decode: WorkerInfo) -> bool:
    """Whether KV of one means the same to the other."""
    same_model = prefill.model_fingerprint == decode.model_fingerprint
    return same_model and prefill.layout == decode.layout
