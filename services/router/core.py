"""Puts the router's parts together, once, behind both interfaces."""

from __future__ import annotations

import random

from redis.asyncio import Redis

from common.images import ImageLimits
from common.rpc.channels import Channels
from common.rpc.server import RpcServer
from common.store.images import ImageStore
from services.router.admission import Admission
from services.router.cluster import Cluster
from services.router.generation import Generator
from services.router.http.app import Missing, Pages, build_app
from services.router.http.chat import Chat
from services.router.http.intake import Intake
from services.router.http.server import HttpServer
from services.router.images import Images
from services.router.ledger import Ledger
from services.router.metrics import Metrics
from services.router.parts import Parts
from services.router.pipeline import Pipeline
from services.router.pixels import Pixels
from services.router.placement import Placement
from services.router.recent import RecentUploads
from services.router.servicer import FULL_NAME, RouterServicer
from services.router.settings import RouterSettings
from triptych.v1.router_pb2_grpc import add_RouterServiceServicer_to_server


class Core:
    """What both interfaces call."""

    def __init__(
        self,
        settings: RouterSettings,
        parts: Parts,
        redis: Redis,
        cluster: Cluster,
        channels: Channels,
        ledger: Ledger,
    ) -> None:
        self.parts, self.cluster = parts, cluster
        self.metrics = Metrics()
        placement = Placement(cluster, ledger, random.Random())
        limits = ImageLimits(max_bytes=settings.max_image_size)
        recent = RecentUploads(int(settings.recent_uploads))
        self.images = Images(ImageStore(redis), parts.family, limits, settings.max_decoding_images, recent)
        admission = Admission(parts, self.images, placement)
        pipeline = Pipeline(placement, ledger, channels, Pixels(self.images.file, channels))
        self.generator = Generator(parts.card.name, admission, pipeline, parts.tokenizer, self.metrics)


def add_rpc(server: RpcServer, settings: RouterSettings, core: Core) -> None:
    """Add the gRPC interface to `server`."""
    servicer = RouterServicer(core.generator, core.images, core.parts.card, settings.request_timeout_s)
    server.add(add_RouterServiceServicer_to_server, servicer, FULL_NAME)


def http_server(settings: RouterSettings, core: Core, missing: Missing) -> HttpServer:
    """The HTTP interface, not started."""
    parts = core.parts
    intake = Intake(core.images, settings.max_image_size, settings.max_images)
    chat = Chat(
        parts.card.name, core.generator, intake, parts.tokenizer, settings.max_body_size, settings.request_timeout_s
    )
    app = build_app(chat, Pages(parts.card, missing, core.metrics))
    return HttpServer(app, settings.host, settings.http_port, settings.drain_grace_s)
