"""Frames are ordinary protobuf on the wire, whoever wrote them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.kv.frames import Frame, decode_pull, decode_push, encode
from triptych.v1 import kv_pb2, types_pb2


def chunk(slot: int | None = None) -> kv_pb2.KvChunk:
    return kv_pb2.KvChunk(first_block=3, num_blocks=300, num_layers=1, xxh3=1 << 63, seq=1 << 40, slot=slot)


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=3))
def test_protobuf_reads_what_we_write(pieces: list[bytes]) -> None:
    raw = encode(Frame(kv_pb2.PushRequest(chunk=chunk(slot=0)), pieces))
    expected = chunk(slot=0)
    expected.data = b"".join(pieces)
    assert kv_pb2.PushRequest.FromString(raw).chunk == expected


@given(st.binary(max_size=400))
def test_we_read_what_protobuf_writes(data: bytes) -> None:
    written = chunk(slot=7)
    written.data = data
    frame = decode_push(kv_pb2.PushRequest(chunk=written).SerializeToString())
    assert frame.message.chunk == chunk(slot=7)
    assert b"".join(frame.payload) == data


@given(st.binary(min_size=1, max_size=400))
def test_a_payload_is_not_copied_when_read(data: bytes) -> None:
    raw = encode(Frame(kv_pb2.PullResponse(chunk=chunk()), (data,)))
    assert isinstance(payload := decode_pull(raw).payload[0], memoryview)
    assert payload.obj is raw


@given(st.binary(max_size=60))
def test_nonsense_is_no_message_and_no_exception(raw: bytes) -> None:
    for text in (raw, b"\x12" + raw, b"\x12" + bytes((len(raw),)) + raw):
        assert decode_push(text).kind in (None, "header", "chunk", "first_token", "alive")


def test_messages_without_payload_pass_unchanged() -> None:
    message = kv_pb2.PushRequest(first_token=kv_pb2.FirstToken(token=types_pb2.GeneratedToken(token_id=9)))
    assert decode_push(encode(Frame(message))).message == message
