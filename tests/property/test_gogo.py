"""The server's decoder on any bytes, and against Google's library where both accept."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError as UpbError
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stantools.format.gogo import DecodeError, decode
from stantools.format.proto import store_pb2 as pb

KINDS: list[Any] = [
    pb.ServerInfo,
    pb.ClientInfo,
    pb.SubState,
    pb.SubStateUpdate,
    pb.MsgProto,
    pb.RaftOperation,
    pb.RaftSnapshot,
    pb.SubscriptionSnapshot,
]

TEXTS = (
    "unexpected EOF",
    "proto: integer overflow",
    "proto: negative length found during unmarshaling",
    "proto: illegal wireType ",
    "proto: wrong wireType = ",
    "proto: ",
)


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def numbers(draw: st.DrawFn) -> bytes:
    return varint(draw(st.integers(0, 300) | st.integers(0, 2**64 - 1) | st.integers(0, 2**70 - 1)))


@st.composite
def fields(draw: st.DrawFn, depth: int = 2) -> bytes:
    """Something like a message: fields of any number and wire type, mostly well formed."""
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        wire = draw(st.sampled_from([0, 0, 0, 2, 2, 2, 1, 5, 3, 4, 6]))
        parts.append(varint(draw(st.integers(1, 12) | st.integers(0, 2**61 - 1)) << 3 | wire))
        if wire == 0:
            parts.append(numbers(draw))
        elif wire == 2:
            content = draw(fields(depth - 1) if depth else st.binary(max_size=6))
            parts += [varint(len(content)), content]
        elif wire == 3:
            content = draw(fields(depth - 1)) if depth else b""
            parts += [content, varint(draw(st.integers(1, 12)) << 3 | 4)]
        else:
            parts.append(bytes({1: 8, 5: 4}.get(wire, 0)))
    return b"".join(parts)


@given(kind=st.sampled_from(KINDS), payload=st.binary(max_size=60) | fields())
@example(kind=pb.SubState, payload=b"\x0c")
@settings(max_examples=400)
def test_any_bytes_are_decoded_or_refused(kind: Any, payload: bytes) -> None:
    try:
        message = decode(kind, payload)
    except DecodeError as error:
        assert str(error).startswith(TEXTS)
        return
    other = kind()
    try:
        other.ParseFromString(payload)
    except UpbError:
        return
    other.DiscardUnknownFields()
    assert message == other


def messages(kind: Any) -> st.SearchStrategy[Message]:
    values: dict[str, st.SearchStrategy[Any]] = {}
    for field in kind.DESCRIPTOR.fields:
        one: st.SearchStrategy[Any]
        if field.type == field.TYPE_MESSAGE:
            one = messages(field.message_type._concrete_class)
        elif field.type == field.TYPE_BYTES:
            one = st.binary(max_size=6)
        elif field.type == field.TYPE_BOOL:
            one = st.booleans()
        else:
            signed = field.type in (field.TYPE_INT32, field.TYPE_INT64, field.TYPE_ENUM)
            bits = 64 if field.type in (field.TYPE_INT64, field.TYPE_UINT64) else 32
            low = -(2 ** (bits - 1)) if signed else 0
            one = st.integers(low, low + 2**bits - 1) | st.integers(0, 200)
        if hasattr(getattr(kind(), field.name), "__len__") and field.type != field.TYPE_BYTES:
            one = st.lists(one, max_size=3)
        values[field.name] = one
    return st.fixed_dictionaries({}, optional=values).map(lambda given: kind(**given))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=40)
def test_what_google_encodes_is_decoded_to_the_same(kind: Any, data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    payload = message.SerializeToString()
    assert decode(kind, payload) == message
    # The slow way, which an unknown field at the end enforces.
    assert decode(kind, payload + b"\xf8\x01\x01") == message


@given(data=st.data())
@settings(max_examples=100)
def test_cut_messages_are_refused_or_shorter(data: st.DataObject) -> None:
    payload = data.draw(messages(pb.SubState)).SerializeToString()
    size = data.draw(st.integers(0, len(payload)))
    try:
        message = decode(pb.SubState, payload[:size])
    except DecodeError as error:
        assert str(error) == "unexpected EOF"
    else:
        assert message.SerializeToString() == payload[:size]
