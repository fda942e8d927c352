"""Whether all workers are there, of one version and checkpoint. Pure: a snapshot of the cluster in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triptych.doctor.finding import Finding
from triptych.v1.router_pb2 import WatchClusterResponse, WorkerStatus
from triptych.v1.worker_pb2 import WorkerInfo, WorkerRole

ENCODER, PREFILL, DECODE = (
    WorkerRole.WORKER_ROLE_ENCODER,
    WorkerRole.WORKER_ROLE_PREFILL,
    WorkerRole.WORKER_ROLE_DECODE,
)


def name_of(info: WorkerInfo) -> str:
    """Role and address, as everywhere in the findings."""
    return f"{WorkerRole.Name(info.role).removeprefix('WORKER_ROLE_').lower()} {info.address}"


def check_reach(now: WatchClusterResponse) -> Iterator[Finding]:
    """Each worker of the registry by what the router says of it, and those it does not count as its own."""
    for worker in now.workers:
        yield _reach(worker)
    for info in now.others:
        fix = f"start it with the router's checkpoint, or with --model-name {now.router.model}"
        yield Finding("reach", name_of(info), "fix", f"serves {info.model}, the router {now.router.model}", fix)


def _reach(worker: WorkerStatus) -> Finding:
    subject = name_of(worker.info)
    if worker.info.draining:
        return Finding("reach", subject, "ok", "takes no new work: it drains")
    if worker.reachable:
        return Finding("reach", subject, "ok", "answers the router")
    fix = "does it run, does --advertise name an address that the router reaches, do both use TLS or neither?"
    return Finding("reach", subject, "fix", "is in the registry and does not answer the router", fix)


def check_versions(now: WatchClusterResponse) -> Iterator[Finding]:
    """One version everywhere."""
    for worker in now.workers:
        theirs, ours = worker.info.version, now.router.version
        if theirs != ours:
            fix = "replace the workers first, then the routers: a worker answers older routers"
            yield Finding("version", name_of(worker.info), "fix", f"{theirs}, the router {ours}", fix)
    yield Finding("version", "router", "ok", now.router.version)


def check_checkpoints(now: WatchClusterResponse) -> Iterator[Finding]:
    """The same checkpoint everywhere: config, image processor, weights of the two language stages, KV layout."""
    infos = [worker.info for worker in now.workers]
    found = [*_configs(now, infos), *_processors(now, infos), *_towers(infos), *_pairs(infos)]
    yield from found or [Finding("checkpoint", now.router.model, "ok", "the same in all processes")]


def _configs(now: WatchClusterResponse, infos: Sequence[WorkerInfo]) -> Iterator[Finding]:
    for info in infos:
        if info.config_fingerprint != now.router.config_fingerprint:
            text = "has another config.json than the router; it gets no work"
            yield Finding("checkpoint", name_of(info), "fix", text, "give all processes the same checkpoint directory")


def _processors(now: WatchClusterResponse, infos: Sequence[WorkerInfo]) -> Iterator[Finding]:
    for info in infos:
        if info.role == ENCODER and info.preprocessing_fingerprint != now.router.preprocessing_fingerprint:
            text = "prepares pictures differently than the router counts their tokens; it gets no work"
            yield Finding("checkpoint", name_of(info), "fix", text, "give both the same preprocessor_config.json")


def _towers(infos: Sequence[WorkerInfo]) -> Iterator[Finding]:
    encoders = [info for info in infos if info.role == ENCODER]
    for info in encoders[1:]:
        if (info.model_fingerprint, info.dtype) != (encoders[0].model_fingerprint, encoders[0].dtype):
            text = f"has other weights or another dtype than {name_of(encoders[0])}: they share no embedding"
            yield Finding("checkpoint", name_of(info), "fix", text, "finish the change of the model")


def _pairs(infos: Sequence[WorkerInfo]) -> Iterator[Finding]:
    for role, partner in ((PREFILL, DECODE), (DECODE, PREFILL)):
        partners = [info for info in infos if info.role == partner]
        for info in infos:
            if info.role == role and partners and not any(_differences(info, each) == [] for each in partners):
                text = f"fits no {name_of(partners[0]).split()[0]} worker: {', '.join(_differences(info, partners[0]))}"
                yield Finding("checkpoint", name_of(info), "fix", text, "the same checkpoint, --dtype and --block-size")


def _differences(one: WorkerInfo, other: WorkerInfo) -> list[str]:
    """What keeps KV of one from meaning the same to the other."""
    told = [] if one.model_fingerprint == other.model_fingerprint else ["other weights"]
    fields = [field.name for field in one.layout.DESCRIPTOR.fields]
    return told + [name for name in fields if getattr(one.layout, name) != getattr(other.layout, name)]
