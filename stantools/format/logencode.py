"""Encoding the records of clients.dat and subs.dat, in bulk.

Facts: filestore.md sections 2.2, 3.3 and 3.4. By far the most records of a subs.dat say that a message was
sent or acknowledged:

    size u24 | type u8 | crc u32 | 08 id as varint | 10 sequence as varint

They are encoded as the columns of matrices, one matrix for each combination of lengths of the two numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from stantools.format.envelope import encode
from stantools.format.fieldscan import encode_varint
from stantools.format.layout import RECORD_HEADER_SIZE, ClientRecord, SubRecord
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stantools.format.crc import Crc

#: one property of many records: an array, a list, or one number for all
Column: TypeAlias = int | Sequence[int] | np.ndarray[Any, np.dtype[Any]]

#: number of records from which the matrices are faster than single records
_MATRIX_FROM = 24
#: smallest number whose varint has 1, 2, … bytes; 0 is left out of a message altogether
_THRESHOLDS = np.array([1, *(1 << bits for bits in range(7, 64, 7))], np.uint64)
_ID_TAG, _SEQUENCE_TAG = 0x08, 0x10


def encode_client(client: pb.ClientInfo, crc: Crc) -> bytes:
    return encode(client.SerializeToString(), crc, ClientRecord.ADD)


def encode_client_delete(client_id: bytes, crc: Crc) -> bytes:
    return encode(pb.ClientDelete(id=client_id).SerializeToString(), crc, ClientRecord.DELETE)


def encode_subscription(state: pb.SubState, crc: Crc, *, update: bool = False) -> bytes:
    """Encodes the whole state of a subscription, as a New or an Update record."""
    return encode(state.SerializeToString(), crc, SubRecord.UPDATE if update else SubRecord.NEW)


def encode_subscription_delete(subscription: int, crc: Crc) -> bytes:
    return encode(pb.SubStateDelete(id=subscription).SerializeToString(), crc, SubRecord.DELETE)


def encode_flow(types: Column, ids: Column, sequences: Column, crc: Crc) -> bytes:
    """Encodes records of messages that were sent (`SubRecord.MSG`) or acknowledged (`ACK`), one after the other.

    Each argument is a column, or one number for all records.
    """
    counts = {len(column) for column in (types, ids, sequences) if isinstance(column, Sized)}
    if len(counts) > 1:
        raise ValueError("the columns of a log have different lengths")
    count = counts.pop() if counts else 1
    if count < _MATRIX_FROM:
        return _encode_singly(_listed(types, count), _listed(ids, count), _listed(sequences, count), crc)
    kind = np.broadcast_to(np.asarray(types, np.uint32), count)
    number = np.broadcast_to(np.asarray(ids, np.uint64), count)
    sequence = np.broadcast_to(np.asarray(sequences, np.uint64), count)
    # Varints have at most ten bytes, so a group is a number below 256.
    groups = np.searchsorted(_THRESHOLDS, number, side="right") * 16
    groups += np.searchsorted(_THRESHOLDS, sequence, side="right")
    first = int(groups[0])
    if bool((groups == first).all()):
        return _matrix(first, kind, number, sequence, crc).tobytes()
    sizes = np.array([RECORD_HEADER_SIZE + sum(_field_sizes(group)) for group in range(256)])[groups]
    starts = np.cumsum(sizes) - sizes
    encoded = np.empty(int(sizes.sum()), np.uint8)
    for group in np.unique(groups).tolist():
        rows = np.flatnonzero(groups == group)
        records = _matrix(group, kind[rows], number[rows], sequence[rows], crc)
        encoded[starts[rows, None] + np.arange(records.shape[1])] = records
    return encoded.tobytes()


def _listed(column: Column, count: int) -> Sequence[int]:
    if isinstance(column, np.ndarray):
        listed: list[int] = column.tolist()
        return listed
    return column if isinstance(column, Sequence) else [column] * count


def _encode_singly(kinds: Sequence[int], ids: Sequence[int], sequences: Sequence[int], crc: Crc) -> bytes:
    varint: Callable[[int], bytes] = encode_varint
    parts = []
    for kind, number, sequence in zip(kinds, ids, sequences, strict=True):
        payload = b"\x08" + varint(number) if number else b""
        if sequence:
            payload += b"\x10" + varint(sequence)
        parts.append(encode(payload, crc, kind))
    return b"".join(parts)


def _field_sizes(group: int) -> tuple[int, int]:
    number, sequence = divmod(group, 16)
    return number and number + 1, sequence and sequence + 1


def _matrix(
    group: int, kind: NDArray[np.uint32], number: NDArray[np.uint64], sequence: NDArray[np.uint64], crc: Crc
) -> NDArray[np.uint8]:
    split, rest = _field_sizes(group)
    size = split + rest
    records = np.empty((len(kind), RECORD_HEADER_SIZE + size), np.uint8)
    payload = records[:, RECORD_HEADER_SIZE:]
    _put_field(payload[:, :split], _ID_TAG, number)
    _put_field(payload[:, split:], _SEQUENCE_TAG, sequence)
    table = np.asarray(crc.tables)[0]
    register = np.full(len(kind), 0xFFFFFFFF, np.uint32)
    for column in range(size):
        register = table[(register ^ payload[:, column]) & 0xFF] ^ (register >> 8)
    header = np.empty((len(kind), 2), "<u4")
    header[:, 0] = kind << 24 | size
    header[:, 1] = ~register
    records[:, :RECORD_HEADER_SIZE] = header.view(np.uint8)
    return records


def _put_field(columns: NDArray[np.uint8], tag: int, value: NDArray[np.uint64]) -> None:
    """Fills the columns of a field with its tag and a varint of exactly this width."""
    size = columns.shape[1]
    if not size:
        return
    columns[:, 0] = tag
    for position in range(1, size):
        more = 0x80 if position < size - 1 else 0
        columns[:, position] = (value >> np.uint64(7 * (position - 1)) & np.uint64(0x7F)) | np.uint64(more)
