"""The format of stored embeddings is safetensors behind a checksum, readable by others."""

from __future__ import annotations

import gc
import json
import sys

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from common.store import codec
from common.store.packed import CHECKSUM_BYTES

KEY = "c" * 64
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def packed(tensors: dict[str, Tensor]) -> bytes:
    return bytes(codec.pack(KEY, tensors))


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return all(one[name].dtype == two[name].dtype and torch.equal(one[name], two[name]) for name in two)


@settings(deadline=None)
@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 3))
def test_safetensors_reads_what_we_write(dtypes: list[torch.dtype], rows: int, width: int) -> None:
    tensors = {f"t{at}": torch.ones(rows, width, dtype=dtype) * at for at, dtype in enumerate(dtypes)}
    theirs = load(packed(tensors)[CHECKSUM_BYTES:])
    assert all(
        theirs[name].dtype == tensors[name].dtype and torch.equal(theirs[name], tensors[name]) for name in tensors
    )


@settings(deadline=None)
@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=5), st.integers(1, 5))
def test_we_read_what_we_write(dtypes: list[torch.dtype], rows: int) -> None:
    tensors = {f"t{at}": torch.ones(rows, 3, dtype=dtype) * at for at, dtype in enumerate(dtypes)}
    ours = codec.unpack(KEY, packed(tensors), rows)
    assert same(ours, tensors)


def test_a_view_is_written_as_what_it_shows() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    assert torch.equal(codec.unpack(KEY, packed({"x": tensor}))["x"], tensor)


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


def test_what_was_read_lives_as_long_as_its_tensors() -> None:
    value = packed({"x": torch.arange(100_000.0)})
    tensors = codec.unpack(KEY, value)
    references = sys.getrefcount(value)
    del tensors
    gc.collect()
    assert sys.getrefcount(value) == references - 1


def test_the_data_is_not_copied() -> None:
    tensor = torch.zeros(1000, 2)
    *_, last = codec.pack(KEY, {"x": tensor}).pieces(10_000)
    assert np.frombuffer(last, np.uint8).ctypes.data == tensor.data_ptr()


@given(st.integers(1, 300))
def test_pieces_make_the_value_once_the_checksum_is_known(most: int) -> None:
    value = codec.pack(KEY, {"x": torch.arange(50.0), "y": torch.ones(50, 2)})
    sent = b"".join(value.pieces(most))
    assert value.checksum + sent[CHECKSUM_BYTES:] == bytes(value)
    assert bytes(value) == packed({"x": torch.arange(50.0), "y": torch.ones(50, 2)})


@pytest.mark.parametrize("tensor", [torch.zeros(3, 2, dtype=torch.complex64), torch.zeros(4, 2)])
def test_what_no_reader_could_use_is_not_packed(tensor: Tensor) -> None:
    with pytest.raises(codec.BadValueError):
        codec.pack(KEY, {"x": tensor}, rows=3)
