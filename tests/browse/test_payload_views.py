"""Payloads as lines: any bytes in any form, harmless and without an exception."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stantools.browse.payload_views import HexLines, PayloadForm, lines_of, preview, protobuf_lines
from stantools.browse.payload_views import likely_form as likely
from stantools.browse.protobuf_fields import message_head, read_wire
from stantools.format.proto import store_pb2 as pb

nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def text(data: bytes, form: PayloadForm, width: int = 80, levels: int = 99) -> list[str]:
    return ["".join(piece for piece, _ in line) for line in lines_of(data, form, width, levels)]


@given(
    data=st.binary(max_size=300),
    form=st.sampled_from(list(PayloadForm)),
    width=st.integers(0, 120),
    levels=st.integers(1, 5),
)
def test_anything_can_be_shown(data: bytes, form: PayloadForm, width: int, levels: int) -> None:
    for line in lines_of(data, form, width, levels):
        for piece, _ in line:
            assert piece.isprintable()
    assert likely(data) in PayloadForm
    assert preview(data, 40).isprintable() and len(preview(data, 40)) <= 40


@example(value=[float("inf"), float("-inf")])
@given(value=nested)
def test_json_is_what_it_was(value: object) -> None:
    data = json.dumps(value).encode()
    shown = "\n".join(text(data, PayloadForm.JSON))
    if "\\" not in shown:  # what cannot be shown is escaped
        assert json.loads(shown) == json.loads(data)


def test_json_is_folded() -> None:
    data = b'{"a": {"b": {"c": {"d": 1}}}, "e": [1, 2], "n": 12345678901234567890.10}'
    assert text(data, PayloadForm.JSON, levels=2) == [
        "{",
        '  "a": {',
        '    "b": {… 1 keys}',
        "  },",
        '  "e": [',
        "    1,",
        "    2",
        "  ],",
        '  "n": 12345678901234567890.10',
        "}",
    ]


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[" + b"1" * 5000 + b"]"])
def test_hostile_json(data: bytes) -> None:
    assert text(data, PayloadForm.JSON, levels=3)
    likely(data)


@given(data=st.binary(max_size=400))
def test_any_bytes_as_protobuf(data: bytes) -> None:
    message = read_wire(data)
    assert 0 <= message.end <= len(data)
    assert bool(message.problem) == (message.end < len(data)) or message.problem
    list(protobuf_lines(data, 3))
    message_head(data)


@given(
    sequence=st.integers(0, 2**64 - 1),
    subject=st.text(max_size=20),
    data=st.binary(max_size=60),
    time=st.integers(-(2**63), 2**63 - 1),
)
def test_fields_are_found(sequence: int, subject: str, data: bytes, time: int) -> None:
    encoded = pb.MsgProto(sequence=sequence, subject=subject.encode(), data=data, timestamp=time).SerializeToString()
    message = read_wire(encoded)
    assert not message.problem
    values = {field.number: field.value for field in message.fields}
    assert values.get(1, 0) == sequence
    assert values.get(2, b"") == subject.encode()
    assert values.get(4, b"") == data
    head = message_head(encoded)
    assert (head.subject, head.data, head.data_size) == (subject.encode(), data, len(data))


def test_protobuf_is_nested() -> None:
    inner = b"\x08\x96\x01\x12\x04text"
    data = b"\x0a" + bytes([len(inner)]) + inner + b"\x15\x00\x00\x80\x3f"
    assert text(data, PayloadForm.PROTOBUF) == [
        "1: {  message, 11 bytes",
        "  1: 150  varint, zigzag 75",
        '  2: "text"',
        "}",
        "2: 1065353216  fixed32, float 1",
    ] or text(data, PayloadForm.PROTOBUF)[0].startswith("1: {  message")


def test_deep_nesting_ends() -> None:
    data = b"\x01\xff"
    for _ in range(200):
        data = b"\x0a" + _varint(len(data)) + data
    assert text(data, PayloadForm.PROTOBUF)
    assert read_wire(b"\x0b" * 10_000).problem


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def test_chosen_by_itself() -> None:
    rows: list[tuple[bytes, PayloadForm]] = [
        (b"", PayloadForm.TEXT),
        (b"hello", PayloadForm.TEXT),
        ("東京".encode(), PayloadForm.TEXT),
        (b'{"a": 1}', PayloadForm.JSON),
        (b" [1]", PayloadForm.JSON),
        (b"{broken", PayloadForm.TEXT),
        (b"\x08\x96\x01\x10\x01", PayloadForm.PROTOBUF),
        (bytes(range(128, 256)), PayloadForm.HEX),
        (b"x" * (1 << 20), PayloadForm.TEXT),
    ]
    for data, form in rows:
        assert likely(data) is form, (data, form)


def test_hex() -> None:
    assert text(b"0123456789abcdef\x00\xff", PayloadForm.HEX) == [
        "00000000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  0123456789abcdef",
        "00000010  00 ff                                             ..",
    ]
    assert len(HexLines(bytes(1 << 20), 16)) == 1 << 16


def test_text_is_broken_at_the_width() -> None:
    assert text("東京東京東京".encode(), PayloadForm.TEXT, 8) == ["東京東京", "東京"]
    assert text(b"one\r\ntwo\n\n\x1b[31mred", PayloadForm.TEXT, 40) == ["one", "two", "", "\\x1b[31mred"]
    assert text(b"x" * 300_000, PayloadForm.TEXT, 80)[-1].startswith(f"… {300_000 - (1 << 16):,} bytes more")
