from __future__ import annotations

from typing import Any

import pytest

from stantools.format.gogo import DecodeError, decode, skip_field
from stantools.format.proto import store_pb2 as pb

ENDLESS = b"\xff" * 10
NEGATIVE = b"\xff" * 9 + b"\x01"
HUGE = b"\xff" * 8 + b"\x7f"


def test_accepts() -> None:
    rows: list[tuple[bytes, dict[str, int]]] = [
        (b"", {}),
        (b"\x10\x07\x08\x05", {"id": 5, "seqno": 7}),  # any order
        (b"\x08\x01\x08\x02", {"id": 2}),  # the last one counts
        (b"\x88\x00\x03", {"id": 3}),  # a longer tag than needed
        (b"\x08\x80\x80\x00", {"id": 0}),
        (b"\x08" + b"\xff" * 9 + b"\x7f", {"id": 2**64 - 1}),  # bits beyond the 64th are dropped
        (b"\x1a\x02xy\x20\x01\x08\x09", {"id": 9}),  # unknown fields of every wire type
        (b"\x19" + bytes(8) + b"\x1d" + bytes(4) + b"\x08\x09", {"id": 9}),
        (b"\x1b\x08\x01\x23\x24\x1a\x01x\x64\x08\x09", {"id": 9}),  # nested groups, the numbers do not matter
        (b"\x88\x80\x80\x80\x80\x01\x04", {"id": 4}),  # field numbers are cut to 32 bits
    ]
    for payload, fields in rows:
        assert decode(pb.SubStateUpdate, payload) == pb.SubStateUpdate(**fields), (payload, fields)


def test_refuses() -> None:
    rows: list[tuple[Any, bytes, str]] = [
        (pb.SubState, b"\x08", "unexpected EOF"),
        (pb.SubState, b"\x80", "unexpected EOF"),
        (pb.SubState, b"\x12\x03ab", "unexpected EOF"),
        (pb.SubState, b"\x12" + HUGE, "proto: negative length found during unmarshaling"),
        (pb.SubState, b"\x12" + NEGATIVE, "proto: negative length found during unmarshaling"),
        (pb.SubState, b"\x62" + NEGATIVE, "proto: negative length found during unmarshaling"),
        (pb.SubState, b"\x62\x05abcd", "unexpected EOF"),
        (pb.SubState, b"\x65abc", "unexpected EOF"),
        (pb.SubState, b"\x63\x08\x01", "unexpected EOF"),
        (pb.SubState, ENDLESS + b"\x01", "proto: integer overflow"),
        (pb.SubState, b"\x08" + ENDLESS, "proto: integer overflow"),
        (pb.SubState, b"\x60" + ENDLESS, "proto: integer overflow"),
        (pb.SubState, b"\x00\x01", "proto: SubState: illegal tag 0 (wire type 0)"),
        (pb.ClientInfo, b"\x05", "proto: ClientInfo: illegal tag 0 (wire type 5)"),
        (pb.MsgProto, NEGATIVE, "proto: MsgProto: illegal tag -1 (wire type 18446744073709551615)"),
        (pb.ServerInfo, b"\x0c", "proto: ServerInfo: wiretype end group for non-group"),
        (pb.SubStateDelete, b"\x66", "proto: illegal wireType 6"),
        (pb.ClientDelete, b"\x17", "proto: illegal wireType 7"),
        (pb.ClientDelete, b"\x13\x17", "proto: illegal wireType 7"),
    ]
    for kind, payload, text in rows:
        with pytest.raises(DecodeError) as caught:
            decode(kind, payload)
            pytest.fail(f"accepted: {(kind, payload, text)!r}")
        assert str(caught.value) == text, (kind, payload, text)


SERVER_NAMES = {
    pb.ServerInfo: "ClusterID Discovery Publish Subscribe Unsubscribe Close SubClose AcksSubs NodeID",
    pb.ClientInfo: "ID HbInbox ConnID Protocol PingInterval PingMaxOut",
    pb.ClientDelete: "ID",
    pb.SubState: "ID ClientID QGroup Inbox AckInbox MaxInFlight AckWaitInSecs DurableName LastSent IsDurable IsClosed",
    pb.SubStateDelete: "ID",
    pb.SubStateUpdate: "ID Seqno",
    pb.MsgProto: "Sequence Subject Reply Data Timestamp Redelivered RedeliveryCount CRC32",
}


def test_wrong_wire_types_name_the_field_as_the_server_does() -> None:
    for kind in SERVER_NAMES:
        for field, name in zip(kind.DESCRIPTOR.fields, SERVER_NAMES[kind].split(), strict=True):
            for wire in (1, 3, 5, 2 if field.type != field.TYPE_BYTES else 0):
                with pytest.raises(DecodeError) as caught:
                    decode(kind, bytes([field.number << 3 | wire]) + bytes(8))
                    pytest.fail(f"accepted: {kind!r}")
                assert str(caught.value) == f"proto: wrong wireType = {wire} for field {name}", kind


def test_numbers_are_cut_to_the_width_of_their_field() -> None:
    wide = b"\x81\x80\x80\x80\x70"  # 0x7_0000_0001
    state = decode(pb.SubState, b"\x30" + wide + b"\x38" + b"\xff" * 4 + b"\x0f" + b"\x50" + b"\x80\x80\x02")
    assert (state.max_in_flight, state.ack_wait_in_secs, state.is_durable) == (1, -1, True)
    message = decode(pb.MsgProto, b"\x28" + NEGATIVE + b"\x38" + wide)
    assert (message.timestamp, message.redelivery_count) == (-1, 1)


def test_lists_may_be_packed_or_not_and_run_over_their_end() -> None:
    packed = b"\x12\x03\x02\xac\x02"
    assert list(decode(pb.SubscriptionSnapshot, packed).acks_pending) == [2, 300]
    assert list(decode(pb.SubscriptionSnapshot, packed + b"\x10\x09").acks_pending) == [2, 300, 9]
    # The last number of the list takes a byte from behind it.
    assert list(decode(pb.SubscriptionSnapshot, b"\x12\x02\x02\xac\x02").acks_pending) == [2, 300]
    with pytest.raises(DecodeError, match="wrong wireType = 5 for field AcksPending"):
        decode(pb.SubscriptionSnapshot, b"\x15" + bytes(4))


def test_sub_messages_are_merged_and_listed() -> None:
    first = pb.SubState(id=1, inbox=b"a").SerializeToString()
    second = pb.SubState(inbox=b"b").SerializeToString()
    parts = b"".join(b"\x0a" + bytes([len(part)]) + part for part in (first, second))
    assert decode(pb.SubscriptionSnapshot, parts).state == pb.SubState(id=1, inbox=b"b")
    assert len(decode(pb.RaftSnapshot, b"\x0a\x00\x0a\x00").clients) == 2
    assert decode(pb.SubscriptionSnapshot, b"\x0a\x00").HasField("state")
    with pytest.raises(DecodeError, match="unexpected EOF"):
        decode(pb.SubscriptionSnapshot, b"\x0a\x01\x08\x01")


def test_bytes_need_not_be_text() -> None:
    payload = pb.SubState(id=1, client_id=b"\xff\xfe").SerializeToString()
    assert decode(pb.SubState, memoryview(payload)).client_id == b"\xff\xfe"


def test_skip_field_wants_a_whole_field() -> None:
    assert skip_field(b"\x08\x96\x01\x10", 0) == 3
    with pytest.raises(DecodeError):
        skip_field(b"\x0c\x0b", 0)
