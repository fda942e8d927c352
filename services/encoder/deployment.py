"""The Ray Serve application. Imports neither Ray nor torch: the front reads this module, too."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from common.rpc.channels import Channels
from common.store.client import connect
from common.tracing import adopt, start_tracing
from common.tracing.context import Metadata
from services.encoder.heartbeat import Heartbeat, Tell, by_grpc
from services.encoder.scaling import PENDING_TOKENS, TokenPolicy
from services.encoder.settings import EncoderSettings, ReplicaSettings
from services.encoder.work import Description, Done, Failure, Task
from triptych.errors import InternalError, TriptychError, UnavailableError

if TYPE_CHECKING:
    from services.encoder.replica import Replica

log = logging.getLogger(__name__)
POLICY = f"{TokenPolicy.__module__}:{TokenPolicy.__name__}"
Value = TypeVar("Value")
NOT_LOADED = Failure.of(UnavailableError("a replica of the encoder could not load the model", retry_after_s=1.0))


class EncoderDeployment:
    """What Ray runs in each replica: `Replica`, errors as values. It reports by `tell`."""

    def __init__(self, settings: ReplicaSettings, tell: Tell) -> None:
        self._end_tracing = start_tracing("encoder-replica", settings.otlp_endpoint, settings.trace_ratio)
        self._failure: Failure | None = None
        self._was_asked = False
        self._replica: Replica
        try:
            # Only here: the process that defines the application must stay without torch.
            from services.encoder.replica import Replica  # noqa: PLC0415

            self._replica = Replica(settings, connect(settings.redis_url))
            self._heartbeat = Heartbeat(tell, self._replica.record.report)
        except TriptychError as error:
            # Raised, it would be retried and buried in a stack trace; `describe` hands it to the front.
            self._failure = Failure.of(error)

    async def check_health(self) -> None:
        """Ray asks once the replica is built, and periodically; from the first time on, the front hears of it.

        Without a tower it passes once, so that `describe` can say why; then it raises, and Ray replaces the replica.
        """
        if self._failure is None:
            self._heartbeat.start()
        elif self._was_asked:
            raise self._failure.error()
        self._was_asked = True

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `TokenPolicy` sees."""
        return {PENDING_TOKENS: 0.0 if self._failure else float(self._replica.record.pending.tokens)}

    async def describe(self) -> Description | Failure:
        """What is loaded, or why nothing is."""
        return self._failure or self._replica.describe()

    async def ensure(self, task: Task, caller: Metadata) -> Done | Failure:
        """`Replica.ensure`, in the trace that `caller` names."""
        if self._failure is not None:
            return NOT_LOADED
        adopt(caller)
        return await as_value(lambda: self._replica.ensure(task))

    def __del__(self) -> None:
        """Ray calls it when the replica is taken down."""
        self._end_tracing()


class DrivenReplica(EncoderDeployment):
    """One of `python -m services.encoder`, which drives the application; it reports to `front`, host:port."""

    def __init__(self, settings: ReplicaSettings, front: str) -> None:
        super().__init__(settings, by_grpc(front, Channels(settings.tls)))


async def as_value(call: Callable[[], Awaitable[Value]]) -> Value | Failure:
    """The call's result, or its error as a value; the details of an unexpected one stay in the log."""
    try:
        return await call()
    except TriptychError as error:
        return Failure.of(error)
    except Exception:
        log.exception("a picture could not be encoded")
        return Failure.of(InternalError("the encoder failed on this image; see its log"))


def deployment_options(settings: EncoderSettings) -> dict[str, Any]:
    """Options of `serve.deployment`. Every default of Ray that surprises is set here."""
    options: dict[str, Any] = {
        "name": "encoder",
        "max_ongoing_requests": settings.max_ongoing_images,
        "ray_actor_options": {"num_cpus": settings.cpus_per_replica, "num_gpus": settings.gpus_per_replica},
        "health_check_period_s": settings.health_period_s,
        "health_check_timeout_s": settings.health_timeout_s,
        "graceful_shutdown_timeout_s": settings.replica_grace_s,
        "graceful_shutdown_wait_loop_s": 0.1,
    }
    return options | _replicas(settings)


def _replicas(settings: EncoderSettings) -> dict[str, Any]:
    if settings.most_replicas == settings.replicas:
        return {"num_replicas": settings.replicas}
    scaling = {
        "min_replicas": settings.replicas,
        "max_replicas": settings.most_replicas,
        "policy": {"policy_function": POLICY, "policy_kwargs": {"target_tokens": settings.target_tokens}},
        "upscale_delay_s": settings.upscale_delay_s,
        "downscale_delay_s": settings.downscale_delay_s,
        "metrics_interval_s": 1.0,
        "look_back_period_s": 5.0,
    }
    return {"autoscaling_config": scaling}
