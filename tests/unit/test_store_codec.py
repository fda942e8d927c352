"""The format of stored embeddings is safetensors behind a checksum, readable by others."""

from __future__ import annotations

import json

import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from common.store import codec

KEY = "c" * 64
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return all(one[name].dtype == two[name].dtype and torch.equal(one[name], two[name]) for name in two)


@settings(deadline=None)
@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 3))
def test_safetensors_reads_what_we_write(dtypes: list[torch.dtype], rows: int, width: int) -> None:
    tensors = {f"t{at}": torch.ones(rows, width, dtype=dtype) * at for at, dtype in enumerate(dtypes)}
    theirs = load(codec.pack(KEY, tensors)[codec.CHECKSUM_BYTES :])
    assert all(
        theirs[name].dtype == tensors[name].dtype and torch.equal(theirs[name], tensors[name]) for name in tensors
    )


@settings(deadline=None)
@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=5), st.integers(1, 5))
def test_we_read_what_we_write(dtypes: list[torch.dtype], rows: int) -> None:
    tensors = {f"t{at}": torch.ones(rows, 3, dtype=dtype) * at for at, dtype in enumerate(dtypes)}
    ours = codec.unpack(KEY, codec.pack(KEY, tensors), rows)
    assert same(ours, tensors)


def test_a_view_is_written_as_what_it_shows() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    assert torch.equal(codec.unpack(KEY, codec.pack(KEY, {"x": tensor}))["x"], tensor)


def test_what_safetensors_writes_is_readable() -> None:
    body = save({"x": torch.ones(2, 2)}, metadata={"key": KEY})
    assert torch.equal(codec.unpack(KEY, blake3(body).digest() + body)["x"], torch.ones(2, 2))


def wrong(shape: list[int], dtype: str, end: int) -> bytes:
    tensor = {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}
    text = json.dumps({"__metadata__": {"key": KEY}, "x": tensor}).encode()
    body = len(text).to_bytes(8, "little") + text + bytes(end)
    return bytes(blake3(body).digest()) + body


@pytest.mark.parametrize("value", [wrong([2, 2], "F32", 8), wrong([2, 2], "Q4", 16), wrong([-2, -2], "F32", 16)])
def test_a_header_that_lies_is_a_bad_value(value: bytes) -> None:
    with pytest.raises(codec.BadValueError):
        codec.unpack(KEY, value)
