"""Puts the router's parts together, once, behind both interfaces."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from redis.asyncio import Redis

from common.images import ImageLimits
from common.rpc.channels import Channels
from common.rpc.server import RpcServer
from common.rpc.tls import server_tls
from common.store.directory import Directory
from common.store.gallery import Gallery
from common.store.images import ImageStore
from services.router.access.access import Access
from services.router.access.allowance import Quotas
from services.router.access.keys_file import KeysFile
from services.router.access.tenants import Tenants
from services.router.admission import Admission
from services.router.figures.metrics import Metrics
from services.router.figures.prompt_metrics import PromptMetrics
from services.router.generation import Generator
from services.router.grammars import Grammars
from services.router.history.history import History
from services.router.http.app import Missing, Pages, build_app
from services.router.http.chat import Chat
from services.router.http.connections import ConnectionLimits
from services.router.http.endpoint import Endpoint
from services.router.http.intake import Intake
from services.router.http.known import KnownImages
from services.router.http.server import HttpServer
from services.router.http.text import Text
from services.router.parts import Parts
from services.router.pictures.images import Images
from services.router.pictures.incoming import Incoming
from services.router.pictures.recent import RecentUploads
from services.router.placing.ledger import Ledger
from services.router.plan import Planner
from services.router.remote.build import open_remote
from services.router.routing import Routing
from services.router.running.pipeline import Pipeline
from services.router.running.pixels import Pixels
from services.router.servicer import FULL_NAME, RouterServicer
from services.router.settings import RouterSettings
from services.router.snapshot import Snapshots
from triptych.v1.router_pb2_grpc import add_RouterServiceServicer_to_server


class Core:
    """What both interfaces call."""

    def __init__(
        self,
        settings: RouterSettings,
        parts: Parts,
        redis: Redis,
        directory: Directory,
        channels: Channels,
        ledger: Ledger,
    ) -> None:
        self.parts, self.ledger, self.metrics = parts, ledger, Metrics()
        self._directory = directory
        self.routing = routing = Routing(settings, parts, directory, channels, ledger, self.metrics)
        self.cluster = routing.cluster
        self.keys = KeysFile(settings.keys_file) if settings.keys_file else None
        self.access = Access(self._tenants, Quotas(time.monotonic), settings.share_across_tenants)
        self.images = _images(settings, parts, redis)
        self.incoming = Incoming(int(settings.max_incoming), settings.upload_timeout_s)
        self.remote = open_remote(settings, self.images)
        self.history = History(int(settings.history), routing.placement.block_size)
        self.generator = self._generator(channels)

    def degraded(self) -> list[str]:
        """What does not work although answers are given, one sentence each."""
        redis = [] if self._directory.up else ["the router cannot read the registry: Redis does not answer"]
        return redis + self.cluster.degraded()

    def _generator(self, channels: Channels) -> Generator:
        parts, routing, metrics = self.parts, self.routing, self.metrics
        admission, pixels = Admission(parts, self.images, routing.placement), Pixels(self.images.file, channels)
        pipeline = Pipeline(
            routing.placement, self.ledger, channels, pixels, routing.turnstile, routing.failover, metrics
        )
        planner = Planner(Grammars(), parts.renderer.knows_tools)
        prompts = PromptMetrics(metrics.registry, self.cluster.revision)
        return Generator(parts.card.name, planner, admission, pipeline, parts.tokenizer, metrics, self.history, prompts)

    def _tenants(self) -> Tenants | None:
        return self.keys.tenants if self.keys else None


def _images(settings: RouterSettings, parts: Parts, redis: Redis) -> Images:
    limits = ImageLimits(settings.max_image_size, settings.max_image_pixels)
    recent = RecentUploads(int(settings.recent_uploads))
    return Images(ImageStore(redis), Gallery(redis), parts.family, limits, settings.max_decoding_images, recent)


def add_rpc(server: RpcServer, settings: RouterSettings, core: Core, draining: asyncio.Event) -> None:
    """Add the gRPC interface to `server`; `draining` ends what would otherwise never end."""
    timeout = settings.request_timeout_s
    snapshots = Snapshots(core.routing, core.ledger, core.metrics, draining)
    servicer = RouterServicer(
        core.generator, core.images, core.parts.card, snapshots, core.history, core.access, core.incoming, timeout
    )
    server.add(add_RouterServiceServicer_to_server, servicer, FULL_NAME)


def http_server(settings: RouterSettings, core: Core, missing: Missing) -> HttpServer:
    """The HTTP interface, not started."""
    parts = core.parts
    intake = Intake(core.images, settings.max_image_size, settings.max_images, core.remote)
    endpoint = Endpoint(core.generator, settings.max_body_size, core.incoming)
    chat = Chat(parts.card.name, endpoint, intake, parts.tokenizer)
    text = Text(parts.card, endpoint, intake, parts.tokenizer)
    pages, known = Pages(parts.card, missing, core.degraded, core.metrics), KnownImages(core.images)
    app = build_app(chat, text, pages, known, core.access, core.metrics.refused, settings.request_timeout_s)
    tls = server_tls(settings.tls_cert, settings.tls_key, settings.http_client_ca)
    limits = ConnectionLimits(
        settings.upload_timeout_s,
        settings.send_timeout_s,
        settings.max_http_connections,
        partial(core.metrics.shed, "connections"),
    )
    return HttpServer(app, settings.host, settings.http_port, settings.drain_grace_s, limits, tls)
