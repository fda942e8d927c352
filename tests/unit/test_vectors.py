"""The published test vectors: recomputed by the product, and by the recipe that the documentation gives to others."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from common.identity import cache_scope, embedding_key, image_id
from common.identity.blocks import BlockChain, KeyedSpan, block_root
from common.images import ImageLimits, decode_image
from triptych.digests import digest, file_digest

DOCS = Path(__file__).parents[2] / "docs"
VECTORS: dict[str, list[dict[str, Any]]] = json.loads((DOCS / "test-vectors.json").read_text())
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


def recipe(tag: str, *fields: bytes) -> str:
    """The pseudo-code of docs/protocol.md, word by word."""
    stream = b""
    for part in (tag.encode(), *fields):
        stream += struct.pack("<Q", len(part)) + part
    return blake3(stream).hexdigest()


def texts(vector: dict[str, Any], *names: str) -> list[bytes]:
    return [vector[name].encode() for name in names]


@pytest.mark.parametrize("vector", VECTORS["digest"])
def test_digests(vector: dict[str, Any]) -> None:
    fields = [bytes.fromhex(field) for field in vector["fields_hex"]]
    assert digest(vector["tag"], *fields) == recipe(vector["tag"], *fields) == vector["digest"]


@pytest.mark.parametrize("vector", VECTORS["file_digest"])
def test_file_digests(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes_hex"])
    assert file_digest(data) == recipe("triptych.file.v1", data) == vector["digest"]


@pytest.mark.parametrize("vector", VECTORS["image_id"])
def test_image_ids(vector: dict[str, Any]) -> None:
    width, height, rgb = vector["width"], vector["height"], bytes.fromhex(vector["rgb_hex"])
    sides = (struct.pack("<Q", side) for side in (width, height))
    assert image_id(width, height, rgb) == recipe("triptych.image.v1", *sides, rgb) == vector["image_id"]
    if "png_hex" in vector:
        assert decode_image(bytes.fromhex(vector["png_hex"]), ImageLimits()).image_id == vector["image_id"]


@pytest.mark.parametrize("vector", VECTORS["cache_scope"])
def test_cache_scopes(vector: dict[str, Any]) -> None:
    fields = texts(vector, *(["tenant"] if vector["salt"] is None else ["tenant", "salt"]))
    assert cache_scope(vector["tenant"], vector["salt"]) == recipe("triptych.scope.v1", *fields) == vector["scope"]


@pytest.mark.parametrize("vector", VECTORS["embedding_key"])
def test_embedding_keys(vector: dict[str, Any]) -> None:
    names = ("image_id", "model_fingerprint", "preprocessing_fingerprint", "dtype", "scope", "detail")
    expected = vector["embedding_key"]
    assert embedding_key(**{name: vector[name] for name in names}) == expected
    assert recipe("triptych.embedding.v1", *texts(vector, *names)) == expected


@pytest.mark.parametrize("vector", VECTORS["kv_block"])
def test_block_hashes(vector: dict[str, Any]) -> None:
    root = block_root(vector["model_fingerprint"], vector["layout"], vector["scope"])
    chain = BlockChain(root, vector["block_size"], [KeyedSpan(**image) for image in vector["images"]])
    chain.extend(vector["token_ids"])
    assert (root.hex(), [value.hex() for value in chain.hashes]) == (vector["root"], vector["hashes"])


def test_the_first_block_hash_by_the_recipe() -> None:
    (vector,), size = VECTORS["kv_block"], VECTORS["kv_block"][0]["block_size"]
    (image,) = vector["images"]
    tokens = struct.pack(f"<{size}I", *vector["token_ids"][:size])
    place = struct.pack("<III", image["offset"], size - image["offset"], 0)
    fields = (bytes.fromhex(vector["root"]), tokens, bytes.fromhex(image["embedding_key"]), place)
    assert recipe("triptych.kv-block.v1", *fields) == vector["hashes"][0]


def test_the_page_and_the_file_agree() -> None:
    section = (DOCS / "protocol.md").read_text().partition("### Names by content")[2].partition("\n## ")[0]
    page = set(DIGEST.findall(section))
    published = {value for kind in VECTORS.values() for vector in kind for value in _results(vector)}
    assert page <= published
    assert all(page & set(_results(vector)) for kind in VECTORS.values() for vector in kind[:1])


def _results(vector: dict[str, Any]) -> list[str]:
    named = [vector.get(name) for name in ("digest", "image_id", "scope", "embedding_key", "root")]
    return [*(value for value in named if value), *vector.get("hashes", [])]
