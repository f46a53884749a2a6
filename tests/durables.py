"""Stores with many offline durables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import ONE_SLICE
from stantools.store.serverinfo import new_server_info
from stantools.store.storewriter import StoreWriter


def durables(count: int) -> Iterator[pb.SubState]:
    """Yields offline durables with the ids from 1 on, of a thousand clients."""
    for number in range(1, count + 1):
        yield pb.SubState(
            id=number,
            client_id=b"client-%d" % (number % 1000),
            inbox=b"_INBOX.Cc9X0pq8sBvh4zj%08d" % number,
            ack_inbox=b"_INBOX.Ac9X0pq8sBvh4zj%08d" % number,
            max_in_flight=1024,
            ack_wait_in_secs=30,
            durable_name=b"durable-%d" % number,
            last_sent=10,
            is_durable=True,
            is_closed=True,
        )


def write_durables(place: Path, count: int) -> Path:
    """Writes a store whose only channel has many offline durables, every tenth with two pending messages."""
    place.mkdir(parents=True)
    writer = StoreWriter(place, Crc())
    writer.write_server(new_server_info("test-cluster"))
    writer.write_clients([])
    writer.write_subs(b"foo", ((state, [9, 10] if state.id % 10 == 0 else []) for state in durables(count)))
    with writer.slices(b"foo", ONE_SLICE) as slices:
        slices.append(range(1, 11), range(1, 11), [b""] * 10, [b"hello"] * 10)
    return place
