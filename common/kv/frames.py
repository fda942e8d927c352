"""Messages with their KV bytes beside them, so that protobuf never copies a payload. On the wire they are ordinary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from triptych.v1 import kv_pb2

_CHUNK_TAG = bytes((kv_pb2.PushRequest.CHUNK_FIELD_NUMBER << 3 | 2,))
_DATA_TAG = kv_pb2.KvChunk.DATA_FIELD_NUMBER << 3 | 2

Message = TypeVar("Message", kv_pb2.PushRequest, kv_pb2.FetchResponse, kv_pb2.PullResponse)


@dataclass(frozen=True, slots=True)
class Frame(Generic[Message]):
    """A message whose chunk, if it is one, has its `data` in `payload`: pieces that follow each other.

    All kinds of message have their chunk under the same field number.
    """

    message: Message
    payload: Sequence[bytes | memoryview] = ()

    @property
    def kind(self) -> str | None:
        """Which message it is."""
        return self.message.WhichOneof("message")

    @property
    def size_bytes(self) -> int:
        """Bytes of KV."""
        return sum(len(piece) for piece in self.payload)


PushFrame = Frame[kv_pb2.PushRequest]
FetchFrame = Frame[kv_pb2.FetchResponse]
PullFrame = Frame[kv_pb2.PullResponse]


def encode(frame: Frame[Message]) -> bytes:
    """The protobuf encoding, with one copy of the payload."""
    if not frame.payload:
        return frame.message.SerializeToString()
    fields = frame.message.chunk.SerializeToString()
    size = frame.size_bytes
    data_head = bytes((_DATA_TAG,)) + _varint(size)
    head = _CHUNK_TAG + _varint(len(fields) + len(data_head) + size)
    return b"".join((head, fields, data_head, *frame.payload))


def decode_push(raw: bytes) -> PushFrame:
    """The inverse of `encode`, without a copy: the payload is a view of `raw`. Nonsense gives a frame of no kind."""
    return _decode(raw, kv_pb2.PushRequest)


def decode_pull(raw: bytes) -> PullFrame:
    """As `decode_push`."""
    return _decode(raw, kv_pb2.PullResponse)


def _decode(raw: bytes, cls: type[Message]) -> Frame[Message]:
    try:
        found = _payload(raw) if raw.startswith(_CHUNK_TAG) else None
        if found is None:
            return Frame(cls.FromString(raw))
        chunk, payload = found
        return Frame(cls(chunk=chunk), (payload,))
    except (DecodeError, IndexError):
        return Frame(cls())


def _payload(raw: bytes) -> tuple[kv_pb2.KvChunk, memoryview] | None:
    """The chunk without its data, and its data; None when it has none."""
    length, begin = _read_varint(raw, 1)
    if begin + length != len(raw):
        raise DecodeError("a chunk's length is wrong")
    for tag, start, content, end in _fields(raw, begin):
        if tag == _DATA_TAG:
            return kv_pb2.KvChunk.FromString(raw[begin:start] + raw[end:]), memoryview(raw)[content:end]
    return None


def _fields(raw: bytes, at: int) -> Iterator[tuple[int, int, int, int]]:
    """Tag, and where tag, content and end of each field are."""
    while at < len(raw):
        start = at
        tag, at = _read_varint(raw, at)
        content, end = _extent(raw, at, tag & 7)
        if end > len(raw):
            raise DecodeError("a field is cut off")
        yield tag, start, content, end
        at = end


def _extent(raw: bytes, at: int, wire_type: int) -> tuple[int, int]:
    if wire_type == 0:
        return at, _read_varint(raw, at)[1]
    if wire_type == 2:
        length, content = _read_varint(raw, at)
        return content, content + length
    if wire_type in (1, 5):
        return at, at + (8 if wire_type == 1 else 4)
    raise DecodeError("a field of an unknown type")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
