"""Payloads that are no protobuf messages, or odd ones, for every subject that the streaming server listens on."""

from __future__ import annotations

#: Bytes by what is odd about them. Decoding each of them fails for every message of the protocol.
BROKEN: dict[str, bytes] = {
    "three bytes of ones": b"\xff\xff\xff",
    "a lone tag": b"\x0a",
    "a length past the end": b"\x0a\x05ab",
    "a length of 2^31": b"\x0a\xff\xff\xff\xff\x07ab",
    "a length of 2^63": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fab",
    "a negative length": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01ab",
    "a varint of eleven bytes": b"\x78" + b"\x80" * 11 + b"\x01",
    "a varint without end": b"\x78" + b"\xff" * 50_000,
    "field number 0": b"\x00\x01",
    "field number 0 with bytes": b"\x02\x01a",
    "wire type 3 without end": b"\x7b" * 1_000_000,
    "wire type 4": b"\x7c",
    "wire type 6": b"\x7e\x01",
    "wire type 7": b"\x7f\x01",
    "half a fixed64": b"\x79\x01\x02",
    "half a fixed32": b"\x7d\x01",
    "text": b"hello, is anybody there?",
    "JSON": b'{"clientID":"me"}',
    "many small fields, then garbage": b"\x78\x01" * 500_000 + b"\x7f",
    "large and broken": b"\x0a\x80\x80\x3c" + b"x" * 983_000,
}
