"""Both kernels do the same on anything, and what they accept means what protobuf says."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.record_buffer import MessageRecordBuffer
from broker.streaming.publishes import columns
from broker.streaming.publishes.columns import PublishColumns, PublishStop, publish_table
from stantools.format.crc import IEEE, KOOPMAN, Crc
from stantools.format.kernels import encode_messages
from stantools.format.proto.protocol_pb2 import Ack, PubAck, PubMsg
from stantools.nats.frames import Payloads
from tests.broker.publishes.conftest import KERNELS
from tests.broker.publishes.frames import lay_out, names_for
from tests.oracles import streaming as oracle

compiled = KERNELS.both[-1]

NAMES = [b"", b"a", b"foo", b"foo.bar", b"x" * 40, b"foo\xff", b"ect"]
name = st.sampled_from(NAMES)
data = st.one_of(st.binary(max_size=40), st.sampled_from([b"y" * 127, b"y" * 128, b"y" * 5000]))


def field(number: int, value: bytes) -> bytes:
    return oracle.encode_varint(number << 3 | 2) + oracle.encode_varint(len(value)) + value


#: Fields of a PubMsg in any order, any number of times, and unknown ones of the simple types.
fields = st.one_of(
    st.builds(field, st.sampled_from([1, 2, 3, 4, 5, 6, 10]), st.one_of(name, data)),
    st.builds(field, st.sampled_from([7, 15, 16, 2047]), data),
    st.builds(lambda n: b"\x38" + oracle.encode_varint(n), st.integers(0, 2**64 - 1)),
    st.sampled_from([b"\x39abcdefgh", b"\x3dabcd"]),
)
usual = st.builds(
    lambda c, g, s, r, d, o: PubMsg(client_id=c, guid=g, subject=s, reply=r, data=d, conn_id=o).SerializeToString(),
    name, st.binary(min_size=1, max_size=200), name, name, data, name,
)  # fmt: skip
well_formed = st.one_of(usual, st.lists(fields, max_size=10).map(b"".join))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    payload = bytearray(draw(well_formed))
    for _ in range(draw(st.integers(1, 3))):
        if payload:
            payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
    return bytes(payload[: draw(st.integers(0, len(payload)))])


garbage = st.one_of(damaged(), st.binary(max_size=30))
replies = st.sampled_from([b"", b"acks", b"acks.1"])
headers = st.sampled_from([b"", b"NATS/1.0\r\n\r\n"])


def tables(kernel: ModuleType, known: list[bytes]) -> list[Any]:
    """Clients, connections and channels that know some names."""
    found = [names_for(kernel) for _ in range(3)]
    for names in found:
        for number, one in enumerate(known):
            names.add(one, number)
    return found


FIELDS = {
    PublishColumns: ("taken", "status", "groups", "singles", "acks", "runs", "size"),
    MessageRecordBuffer: ("data", "starts", "sizes", "sequences", "timestamps", "total"),
    Payloads: ("data", "starts", "sizes"),
}


def in_plain_numbers(result: Any) -> Any:
    if isinstance(result, np.ndarray):
        return result.tolist()
    for kind, names in FIELDS.items():
        if isinstance(result, kind):
            return [in_plain_numbers(getattr(result, name)) for name in names]
    if isinstance(result, list | tuple):
        return [in_plain_numbers(one) for one in result]
    return bytes(result) if isinstance(result, memoryview | bytearray) else result


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(replies, headers, st.one_of(well_formed, usual, garbage)), max_size=12),
    st.lists(name, unique=True),
    st.sampled_from([4, 16]),
    st.sampled_from([-1, 0, 4, 7]),
)
def test_publishes(messages: list[tuple[bytes, bytes, bytes]], known: list[bytes], capacity: int, prefix: int) -> None:
    buffer, frames = lay_out(messages)
    results = []
    for kernel in KERNELS.both:
        table = publish_table(capacity)
        found = kernel.read_publishes(buffer, frames, 0, len(frames), *tables(kernel, known), table, prefix)
        groups = [*found.groups, *((channel, np.array([row], np.int32)) for channel, row in found.singles)]
        records = [
            kernel.encode_records(buffer, table, rows, NAMES[channel], 2**32 - 2, 1795219649260503021, Crc())
            for channel, rows in groups
        ]
        results.append((in_plain_numbers(found), table.tolist(), in_plain_numbers(records)))
    assert results[0] == results[1]

    assert found.taken == sum(len(rows) for _, rows in found.groups) + len(found.singles) == len(found.acks)
    assert all(len(rows) > 1 for _, rows in found.groups)
    for channel, rows in [*found.groups, *((channel, [row]) for channel, row in found.singles)]:
        assert {table[row, columns.CHANNEL] for row in rows} == {channel}
    assert [row for run in found.runs for row in range(run.begin, run.end)] == list(range(found.taken))
    for row, (_, _, payload) in enumerate(messages[: found.taken]):
        message = PubMsg.FromString(payload)
        answer = PubAck.FromString(found.acks.payload(row))
        assert (answer.guid, answer.error) == (message.guid, b"") != (b"", b"")
        start, size = table[row, columns.DATA : columns.DATA_SIZE + 1].tolist()
        assert buffer[start : start + size] == message.data
        start, size = table[row, columns.REPLY : columns.REPLY_SIZE + 1].tolist()
        assert buffer[start : start + size] == message.reply
        assert known[table[row, columns.CHANNEL]] == message.subject
        assert prefix < 0 or b"subject"[prefix:] == message.subject
        assert known[table[row, columns.CLIENT]] == (message.conn_id or message.client_id)
    for run in found.runs:
        assert {messages[row][0] for row in range(run.begin, run.end)} == {run.reply}
    if found.taken < len(messages):
        payload = messages[found.taken][2]
        if found.status is PublishStop.FULL:
            assert found.taken == capacity
        elif found.status is not PublishStop.UNDECODABLE:
            message = PubMsg.FromString(payload)
            assert found.status is (
                PublishStop.NO_GUID if not message.guid
                else PublishStop.UNKNOWN_CLIENT if (message.conn_id or message.client_id) not in known
                else PublishStop.WRONG_SUBJECT if prefix >= 0 and b"subject"[prefix:] != message.subject
                else PublishStop.UNKNOWN_CHANNEL
            )  # fmt: skip
            assert message.subject not in known or found.status is not PublishStop.UNKNOWN_CHANNEL
    else:
        assert found.status is PublishStop.GOOD


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Messages of one publisher, which the plain kernel reads by their likeness; some are changed in one byte."""
    order = draw(
        st.permutations([field(1, b"a"), None, field(3, draw(name)), field(4, draw(name)), b"", field(6, b"a")])
    )
    found = []
    for number in range(draw(st.integers(2, 6))):
        parts = []
        for part in order:
            if part is None:
                part = field(2, b"g%d" % number)
            elif not part:
                part = field(5, draw(data))
            parts.append(part)
        payload = bytearray(b"".join(parts))
        if draw(st.booleans()) and draw(st.booleans()):
            payload[draw(st.integers(0, len(payload) - 1))] = draw(st.sampled_from([0, 1, 5, 0x22, 0x2A, 0x80, 0xFF]))
        found.append(bytes(payload))
    return found


@settings(max_examples=300, deadline=None)
@given(alike())
def test_messages_that_look_alike(payloads: list[bytes]) -> None:
    test_publishes.hypothesis.inner_test([(b"r", b"", payload) for payload in payloads], NAMES, 16, -1)  # type: ignore[attr-defined]


@settings(max_examples=150, deadline=None)
@given(usual)
def test_what_libraries_send_is_taken(payload: bytes) -> None:
    buffer, frames = lay_out([(b"r", b"", payload)])
    for kernel in KERNELS.both:
        found = kernel.read_publishes(buffer, frames, 0, 1, *tables(kernel, NAMES), publish_table(1))
        assert found.taken == 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(data, name), max_size=8),
    name,
    st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 100)),
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 300)),
    st.sampled_from([IEEE, KOOPMAN]),
)
def test_records(messages: list[tuple[bytes, bytes]], channel: bytes, first: int, time: int, polynomial: int) -> None:
    payloads = [PubMsg(guid=b"g", reply=reply, data=piece).SerializeToString() for piece, reply in messages]
    buffer, frames = lay_out([(b"", b"", payload) for payload in payloads])
    crc = Crc(polynomial)
    count = len(messages)
    encoded, sizes = encode_messages(
        channel, range(first, first + count), [time] * count, [m[1] for m in messages], [m[0] for m in messages], crc
    )
    for kernel in KERNELS.both:
        table = publish_table(16)
        kernel.read_publishes(buffer, frames, 0, count, *tables(kernel, [b""]), table)
        records = kernel.encode_records(buffer, table, np.arange(count, dtype=np.int32), channel, first, time, crc)
        assert bytes(records.data) == encoded
        assert records.sizes.tolist() == sizes.tolist()
        assert (records.starts - 8).tolist() == [sum(sizes[:i].tolist()) + 8 * i for i in range(count)]
        assert records.sequences.tolist() == list(range(first, first + count))
        wanted = [(row, channel, first + row, time) for row in range(count)]
        for checked in (None, crc):
            lone = [
                kernel.encode_records(buffer, table, np.array([row], np.int32), channel, first + row, time, checked)
                for row in range(count)
            ]
            assert kernel.encode_lone_records(buffer, table, wanted, checked) == [
                (bytes(each.data), first + row, time) for row, each in enumerate(lone)
            ]


acks = st.one_of(
    st.builds(lambda s, n: Ack(subject=s, sequence=n).SerializeToString(), name, st.integers(0, 2**64 - 1)),
    st.builds(lambda n: Ack(subject=b"foo", sequence=n).SerializeToString(), st.integers(0, 2**64 - 1)),
    st.lists(fields, max_size=3).map(b"".join),
    garbage,
    st.sampled_from([b"\x10" + b"\x80" * 9 + end for end in (b"\x01", b"\x02", b"\x00", b"\x80\x01")]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(acks, max_size=8), st.sampled_from([b"foo", b""]))
def test_acks(payloads: list[bytes], channel: bytes) -> None:
    buffer, frames = lay_out([(b"", b"", payload) for payload in payloads])
    sequences, end = oracle.read_acks(buffer, frames, 0, len(frames), channel)
    assert (sequences, end) == compiled.read_acks(buffer, frames, 0, len(frames), channel)
    assert end == len(sequences)
    for payload, sequence in zip(payloads, sequences, strict=False):
        message = Ack.FromString(payload)
        assert (message.subject, message.sequence) == (channel, sequence)
    for kernel in KERNELS.both:
        for row in range(len(payloads)):
            found, _ = oracle.read_acks(buffer, frames, row, row + 1, channel)
            assert kernel.read_lone_acks(buffer, frames, [row], [channel]) == (found or [None])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=200))
def test_names(steps: list[tuple[bool, int]]) -> None:
    names, model = names_for(compiled), {}
    for step, (add, number) in enumerate(steps):
        text = b"%d" % number
        if add:
            names.add(text, step)
            model[text] = step
        else:
            names.discard(text)
            model.pop(text, None)
    assert len(names) == len(model)
    buffer, frames = lay_out([(b"", b"", field(1, b"%d" % number) + field(2, b"g")) for number in range(61)])
    channels = names_for(compiled)
    channels.add(b"", 0)
    table = publish_table(1)
    for number in range(61):
        # The kernels look into the table, get() into the dictionary.
        found = compiled.read_publishes(buffer, frames, number, number + 1, names, names_for(compiled), channels, table)
        expected = model.get(b"%d" % number, -1)
        assert names.get(b"%d" % number) == expected
        assert found.taken == (expected >= 0)
        assert expected < 0 or table[0, columns.CLIENT] == expected
