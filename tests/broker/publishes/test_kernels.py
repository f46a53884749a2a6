"""What the hot kernels do, by example; that both do the same on anything is in test_properties.py."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from broker.streaming.publishes import columns, fields
from broker.streaming.publishes.columns import PublishColumns, PublishStop, publish_table
from stantools.format.crc import CASTAGNOLI, Crc
from stantools.format.kernels import encode_messages
from stantools.format.proto.protocol_pb2 import Ack, PubAck, PubMsg
from stantools.format.proto.store_pb2 import MsgProto
from stantools.nats.frames import Payloads
from tests.broker.publishes.frames import lay_out, names_for

#: The sample of streaming-protocol.md section 2.
SAMPLE = bytes.fromhex("0a026d65 120167 1a03666f6f 2a0568656c6c6f 32076d652d636f6e6e")
TIME = 1795219649260503021


class Server:
    """What the kernel is told."""

    def __init__(self, kernel: ModuleType, rows: int = 16) -> None:
        self.kernel = kernel
        self.clients, self.connections, self.channels = (names_for(kernel) for _ in range(3))
        self.clients.add(b"me", 1)
        self.connections.add(b"me-conn", 2)
        self.channels.add(b"foo", 3)
        self.channels.add(b"bar", 4)
        self.table = publish_table(rows)
        self.buffer = b""

    def read(self, *payloads: bytes, replies: list[bytes] | None = None, headers: bytes = b"") -> PublishColumns:
        replies = replies or [b"acks"] * len(payloads)
        self.buffer, frames = lay_out([(r, headers, p) for r, p in zip(replies, payloads, strict=True)])
        result = self.kernel.read_publishes(
            self.buffer, frames, 0, len(frames), self.clients, self.connections, self.channels, self.table
        )
        assert isinstance(result, PublishColumns)
        return result

    def text(self, row: int, column: int) -> bytes:
        start, size = self.table[row, column : column + 2].tolist()
        return self.buffer[start : start + size]


def publish(**fields: bytes) -> bytes:
    usual = {"client_id": b"me", "guid": b"g", "subject": b"foo", "data": b"hello", "conn_id": b"me-conn"}
    return PubMsg(**(usual | fields)).SerializeToString()


def test_sample_of_the_specification(kernel: ModuleType) -> None:
    server = Server(kernel)
    found = server.read(SAMPLE)
    assert (found.taken, found.status, found.size) == (1, PublishStop.GOOD, len(SAMPLE))
    assert server.table[0, columns.CLIENT] == 2
    assert server.table[0, columns.CHANNEL] == 3
    assert server.text(0, columns.GUID) == b"g"
    assert server.text(0, columns.DATA) == b"hello"
    assert server.text(0, columns.REPLY) == b""
    assert found.runs == [(b"acks", 0, 1)]
    assert found.acks.payload(0) == bytes.fromhex("0a0167")
    assert (found.groups, found.singles) == ([], [(3, 0)])


def test_headers_are_skipped(kernel: ModuleType) -> None:
    server = Server(kernel)
    found = server.read(SAMPLE, headers=b"NATS/1.0\r\na: b\r\n\r\n")
    assert (found.taken, found.size) == (1, len(SAMPLE))
    assert server.text(0, columns.DATA) == b"hello"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (publish(client_id=b"other"), PublishStop.GOOD),
        (publish(client_id=b""), PublishStop.GOOD),
        (publish(conn_id=b"wrong"), PublishStop.UNKNOWN_CLIENT),
        (publish(conn_id=b""), PublishStop.GOOD),
        (publish(conn_id=b"", client_id=b"other"), PublishStop.UNKNOWN_CLIENT),
        (publish(guid=b""), PublishStop.NO_GUID),
        (publish(subject=b"new"), PublishStop.UNKNOWN_CHANNEL),
        (publish(subject=b""), PublishStop.UNKNOWN_CHANNEL),
        (b"", PublishStop.NO_GUID),
        (publish()[:-1], PublishStop.UNDECODABLE),
        (publish() + b"\x00", PublishStop.UNDECODABLE),
        (publish() + b"\x7b\x7c", PublishStop.UNDECODABLE),  # a group
        (publish() + b"\x28\x05", PublishStop.UNDECODABLE),  # data as a varint
        (publish() + b"\x50\x05", PublishStop.UNDECODABLE),  # sha256 as a varint
        (publish() + b"\x52\x01x", PublishStop.GOOD),
        (publish() + b"\x38\x05\x79abcdefgh\x7dabcd\xa2\x06\x01x", PublishStop.GOOD),  # unknown fields
        (publish() + b"\x80\x80\x01\x00", PublishStop.UNDECODABLE),  # field 2048
        (publish() + b"\x12\x02g2\x1a\x03bar", PublishStop.GOOD),  # the last of a repeated field
    ],
)
def test_who_may_publish(kernel: ModuleType, message: bytes, status: PublishStop) -> None:
    server = Server(kernel)
    found = server.read(SAMPLE, message, SAMPLE)
    if status is PublishStop.GOOD:
        assert (found.taken, found.status) == (3, PublishStop.GOOD)
    else:
        assert (found.taken, found.status) == (1, status)
        assert (found.groups, found.singles) == ([], [(3, 0)])
        assert len(found.acks) == 1


@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        (-1, PublishStop.GOOD), (4, PublishStop.GOOD), (3, PublishStop.WRONG_SUBJECT), (5, PublishStop.WRONG_SUBJECT),
        (7, PublishStop.WRONG_SUBJECT), (8, PublishStop.WRONG_SUBJECT), (1 << 40, PublishStop.WRONG_SUBJECT),
    ],
)  # fmt: skip
def test_the_subject_names_the_channel(kernel: ModuleType, prefix: int, status: PublishStop) -> None:
    server = Server(kernel)
    server.channels.add(b"ect", 5)
    tables = server.clients, server.connections, server.channels, server.table
    buffer, frames = lay_out([(b"r", b"", publish(subject=b"ect")), (b"r", b"", publish(subject=b"foo"))])
    found = kernel.read_publishes(buffer, frames, 0, 1, *tables, prefix)
    assert (found.taken, found.status) == (int(status is PublishStop.GOOD), status)
    found = kernel.read_publishes(buffer, frames, 1, 2, *tables, 4)
    assert (found.taken, found.status) == (0, PublishStop.WRONG_SUBJECT)
    for column, value in ((0, -1), (0, 1000), (1, -1), (1, 1000)):
        wrong = frames.copy()
        wrong[0, column] = value
        with pytest.raises(ValueError):
            kernel.read_publishes(buffer, wrong, 0, 1, *tables, 4)


def test_rows_by_channel_and_runs_of_replies(kernel: ModuleType) -> None:
    server = Server(kernel)
    server.channels.add(b"alone", 9)
    server.channels.add(b"also", 2)
    names = [b"bar", b"foo", b"also", b"foo", b"bar", b"alone", b"foo"]
    replies = [b"x", b"x", b"x", b"", b"", b"x", b"x"]
    found = server.read(*(publish(subject=name, guid=b"g%d" % i) for i, name in enumerate(names)), replies=replies)
    assert [(channel, rows.tolist()) for channel, rows in found.groups] == [(4, [0, 4]), (3, [1, 3, 6])]
    assert found.singles == [(2, 2), (9, 5)]
    assert found.runs == [(b"x", 0, 3), (b"", 3, 5), (b"x", 5, 7)]
    assert [PubAck.FromString(found.acks.payload(row)).guid for row in range(7)] == [b"g%d" % i for i in range(7)]


def test_full_table_and_no_frames(kernel: ModuleType) -> None:
    server = Server(kernel, rows=2)
    found = server.read(SAMPLE, SAMPLE, SAMPLE)
    assert (found.taken, found.status) == (2, PublishStop.FULL)
    found = server.read()
    assert (found.taken, found.status, len(found.acks)) == (0, PublishStop.GOOD, 0)
    assert (found.groups, found.singles, found.runs) == ([], [], [])
    assert server.read(SAMPLE, SAMPLE).status is PublishStop.GOOD


def test_part_of_the_frames(kernel: ModuleType) -> None:
    server = Server(kernel)
    buffer, frames = lay_out([(b"%d" % i, b"", publish(guid=b"g%d" % i)) for i in range(4)])
    found = kernel.read_publishes(
        bytearray(buffer), frames, 1, 3, server.clients, server.connections, server.channels, server.table
    )
    assert found.runs == [(b"1", 0, 1), (b"2", 1, 2)]
    for begin, end in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(ValueError, match="rows"):
            kernel.read_publishes(
                buffer, frames, begin, end, server.clients, server.connections, server.channels, server.table
            )


def test_frames_outside_of_the_buffer(kernel: ModuleType) -> None:
    server = Server(kernel)
    buffer, frames = lay_out([(b"r", b"", SAMPLE)])
    for column, value in ((2, -1), (2, 1000), (3, -1), (3, 1000), (4, -1), (4, 1000), (5, -1), (5, 1000), (6, 1000)):
        wrong = frames.copy()
        wrong[0, column] = value
        with pytest.raises(ValueError):
            kernel.read_publishes(
                buffer, wrong, 0, 1, server.clients, server.connections, server.channels, server.table
            )
        with pytest.raises(ValueError):
            kernel.read_acks(buffer, wrong, 0, 1, b"foo")


@pytest.mark.parametrize("crc", [Crc(), Crc(CASTAGNOLI)])
def test_records_are_what_the_store_writes(kernel: ModuleType, crc: Crc) -> None:
    server = Server(kernel)
    messages = [publish(data=b"x" * size, reply=b"r" * (size % 3)) for size in (0, 1, 5, 127, 128, 300, 70000)]
    found = server.read(*messages)
    rows = found.groups[0].rows
    records = kernel.encode_records(server.buffer, server.table, rows, b"foo", 125, TIME, crc)
    decoded = [PubMsg.FromString(message) for message in messages]
    encoded, sizes = encode_messages(
        b"foo", range(125, 132), [TIME] * 7, [m.reply for m in decoded], [m.data for m in decoded], crc
    )
    assert bytes(records.data) == encoded
    assert records.sizes.tolist() == sizes.tolist()
    assert records.sequences.tolist() == list(range(125, 132))
    assert records.timestamps.tolist() == [TIME] * 7
    for row, message in enumerate(decoded):
        stored = MsgProto.FromString(records.payload(row))
        assert (stored.sequence, stored.subject, stored.data, stored.reply) == (
            125 + row,
            b"foo",
            message.data,
            message.reply,
        )
    some = kernel.encode_records(server.buffer, server.table, rows[[4, 1]].astype(np.int32), b"foo", 9, TIME, None)
    assert [MsgProto.FromString(some.payload(row)).data for row in (0, 1)] == [b"x" * 128, b"x"]
    assert bytes(some.data[4:8]) == bytes(4)  # no CRC


def test_records_refuse_wrong_tables(kernel: ModuleType) -> None:
    server = Server(kernel, rows=1)
    server.read(SAMPLE)

    def encode(rows: list[int], sequence: int = 1, column: int = 0, value: int = 0) -> None:
        table = server.table.copy()
        table[0, column] = value
        kernel.encode_records(server.buffer, table, np.array(rows, np.int32), b"foo", sequence, TIME, None)

    encode([0])
    encode([])
    for rows in ([1], [-1]):
        with pytest.raises(ValueError):
            encode(rows)
    with pytest.raises(ValueError):
        encode([0], sequence=(1 << 64) - 1)
    for column, value in (
        (columns.DATA, 1000),
        (columns.DATA, -1),
        (columns.DATA_SIZE, -1),
        (columns.REPLY_SIZE, 1000),
    ):
        with pytest.raises(ValueError):
            encode([0], column=column, value=value)


def test_lone_records_refuse_wrong_tables(kernel: ModuleType) -> None:
    server = Server(kernel)
    server.read(publish(data=b"one"), publish(subject=b"bar", data=b"two"))
    wanted = [(1, b"bar", 7, TIME), (0, b"foo", 1, 0)]
    found = kernel.encode_lone_records(server.buffer, server.table, wanted, None)
    assert [record[1:] for record in found] == [(7, TIME), (1, 0)]
    assert [MsgProto.FromString(record[0][8:]).data for record in found] == [b"two", b"one"]
    for wrong in ((16, b"foo", 1, 0), (-1, b"foo", 1, 0), (0, b"foo", (1 << 64) - 1, 0), (0, b"foo", 1 << 64, 0),
                  (0, b"foo", -1, 0), (0, b"foo", 1, 1 << 63)):  # fmt: skip
        with pytest.raises(ValueError):
            kernel.encode_lone_records(server.buffer, server.table, [*wanted, wrong], None)
    server.table[1, columns.DATA] = 1000
    with pytest.raises(ValueError):
        kernel.encode_lone_records(server.buffer, server.table, wanted, None)


def test_lone_acks(kernel: ModuleType) -> None:
    payloads = [Ack(subject=name, sequence=7 + row).SerializeToString() for row, name in enumerate([b"a", b"b", b"c"])]
    buffer, frames = lay_out([(b"", b"", payload) for payload in [*payloads, b"\xff"]])
    assert kernel.read_lone_acks(buffer, frames, [2, 0, 1, 3], [b"c", b"a", b"c", b"d"]) == [9, 7, None, None]
    for rows, names in (([4], [b"a"]), ([-1], [b"a"]), ([0], []), ([], [b"a"])):
        with pytest.raises(ValueError):
            kernel.read_lone_acks(buffer, frames, rows, names)
    frames[0, 5] = 1000
    with pytest.raises(ValueError):
        kernel.read_lone_acks(buffer, frames, [0], [b"a"])


def test_acks(kernel: ModuleType) -> None:
    def read(*payloads: bytes, channel: bytes = b"foo") -> tuple[list[int], int]:
        buffer, frames = lay_out([(b"", b"", payload) for payload in payloads])
        sequences, end = kernel.read_acks(buffer, frames, 0, len(frames), channel)
        return sequences, end

    def ack(sequence: int, subject: bytes = b"foo") -> bytes:
        return Ack(subject=subject, sequence=sequence).SerializeToString()

    assert read(bytes.fromhex("0a03666f6f1001")) == ([1], 1)
    assert read() == ([], 0)
    numbers = [1, 127, 128, 1 << 32, (1 << 64) - 1, 0]
    assert read(*map(ack, numbers)) == (numbers, 6)
    for odd in (ack(2, b"bar"), ack(2, b"fo"), b"", b"\xff", ack(2)[:-1], ack(2) + b"\x12\x00", b"\x08\x01"):
        assert read(ack(1), odd, ack(3)) == ([1], 1)
    assert read(b"\x10\x05\x0a\x03foo\x7a\x01x") == ([5], 1)
    assert read(b"\x10\x05", channel=b"") == ([5], 1)


def test_fields() -> None:
    message = MsgProto(sequence=1, subject=b"foo", timestamp=5).SerializeToString()
    again = MsgProto.FromString(fields.redelivered(message, 300))
    assert (again.redelivered, again.redelivery_count, again.sequence) == (True, 300, 1)
    assert MsgProto.FromString(fields.redelivered(message, 0)).redelivery_count == 0
    block = Payloads(message + message, np.array([0, len(message)]), np.array([len(message)] * 2, np.uint32))
    both = fields.redelivered_block(block, [1, 0], [1, 2])
    assert [MsgProto.FromString(both.payload(row)).redelivery_count for row in (0, 1)] == [1, 2]
    assert fields.publish_ack(b"g") == bytes.fromhex("0a0167")
    assert fields.publish_ack(b"") == b""
    failure = PubAck.FromString(fields.failed(fields.publish_ack(b"g"), b"no"))
    assert (failure.guid, failure.error) == (b"g", b"no")
