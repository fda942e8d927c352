"""A picture that nobody has seen before, asked about twice: the second time its embedding must be there."""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Iterator

from triptych.client import Client
from triptych.doctor.finding import Finding
from triptych.errors import TriptychError
from triptych.messages import Image
from triptych.v1.types_pb2 import Usage

SIDE = 64
TIMEOUT_S = 120.0
NS_PER_MS = 10**6


def new_picture() -> Image:
    """Noise, so that no cache can know it: a PNG of 8-bit RGB."""
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + secrets.token_bytes(3 * SIDE) for _ in range(SIDE))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return Image.from_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def ask_twice(client: Client) -> tuple[Usage, Usage]:
    """Both accounts. Raises whatever keeps the router from answering."""
    picture, scope = new_picture(), secrets.token_hex(8)

    def ask(*parts: Image | str) -> Usage:
        answer = client.generate([*parts], max_tokens=1, temperature=0.0, cache_salt=scope, timeout_s=TIMEOUT_S)
        return answer.answer().usage

    # Its place in the prompt differs, so that the KV of the first question does not spare looking for the embedding.
    return ask(picture, "What is it?"), ask("What is it?", picture)


def check_picture(outcome: tuple[Usage, Usage] | TriptychError) -> Iterator[Finding]:
    """What two questions about one new picture show; pure."""
    subject = "test picture"
    if isinstance(outcome, TriptychError):
        yield Finding("picture", subject, "fix", f"no answer: {outcome.message}", "see the findings above")
        return
    first, second = (usage.times.first_token_ns // NS_PER_MS for usage in outcome)
    text = f"first token after {first} ms, and {second} ms when asked again"
    if outcome[1].embedding_hits:
        yield Finding("picture", subject, "ok", f"{text}, from the embedding store")
    else:
        fix = "is Redis up and large enough? store_refused_total and store_write_errors_total of the encoders"
        yield Finding("picture", subject, "fix", f"{text}: encoded twice", fix)
