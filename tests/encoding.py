"""What tests of the encoder share: uploading a picture, and the request for its embedding."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image
from redis.asyncio import Redis

from common.identity import embedding_key
from common.images import ImageLimits, decode_image
from common.models.tower import Tower
from common.store.images import ImageStore, StoredImage
from services.encoder.work import Task
from triptych.digests import file_digest
from triptych.v1 import encoder_pb2

SCOPE = "5" * 64


@dataclass(frozen=True)
class Upload:
    """A picture in the store, and what the router would ask of the encoder."""

    image: Image.Image
    task: Task

    @property
    def message(self) -> encoder_pb2.EncodeImage:
        """The wire form of `task`."""
        fields = {name: value for name, value in vars(self.task).items() if name not in ("request", "data")}
        return encoder_pb2.EncodeImage(**fields)


def describe(tower: Tower, picture: Image.Image, scope: str = SCOPE) -> Upload:
    """The request for a picture that is not uploaded."""
    decoded = decode_image(png(picture), ImageLimits())
    key = embedding_key(
        decoded.image_id,
        model_fingerprint=tower.fingerprint,
        preprocessing_fingerprint=tower.family.preprocessing_fingerprint,
        dtype="float32",
        scope=scope,
    )
    tokens = tower.family.layout(decoded.width, decoded.height).tokens
    return Upload(decoded.image, Task(key, decoded.image_id, scope, tokens, decoded.width, decoded.height))


async def upload(redis: Redis, tower: Tower, picture: Image.Image, scope: str = SCOPE) -> Upload:
    """Put the picture into the store as the router does."""
    data, one = png(picture), describe(tower, picture, scope)
    stored = StoredImage(file_digest(data), one.task.image_id, one.task.width, one.task.height)
    await ImageStore(redis).put(scope, stored, data)
    return one


def png(picture: Image.Image) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
