"""Small stores to be planned for, in a few lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.serverinfo import new_server_info
from stantools.store.storewriter import StoreWriter

CRC = Crc()
START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
NOW = START + 3600 * SECOND


@dataclass
class Channel:
    """A channel: which sequences it has (one second apart), and its subscriptions."""

    sequences: Iterable[int] = ()
    subs: list[tuple[pb.SubState, Iterable[int]]] = field(default_factory=list)
    step: int = SECOND
    payload: bytes = b"payload"


def sub(number: int, sent: int = 0, pending: Iterable[int] = (), **state: Any) -> tuple[pb.SubState, list[int]]:
    """A subscription; text becomes bytes."""
    fields = {key: os.fsencode(value) if isinstance(value, str) else value for key, value in state.items()}
    fields = {"inbox": b"inbox", "ack_inbox": b"ack", "max_in_flight": 16, "ack_wait_in_secs": 30} | fields
    return pb.SubState(id=number, last_sent=sent, **fields), sorted(pending)


def durable(
    number: int, name: str, client: str = "c1", sent: int = 0, pending: Iterable[int] = (), **state: Any
) -> Any:
    return sub(number, sent, pending, client_id=client, durable_name=name, is_durable=True, **state)


def queue(number: int, group: str, client: str = "c1", sent: int = 0, pending: Iterable[int] = (), **state: Any) -> Any:
    return sub(number, sent, pending, client_id=client, q_group=group, **{"is_durable": True, **state})


def write_store(root: Path, channels: Mapping[str | bytes, Channel], clients: Iterable[str] = ("c1", "c2")) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    writer = StoreWriter(root, CRC)
    writer.write_server(new_server_info("cluster"))
    writer.write_clients(pb.ClientInfo(id=client.encode(), hb_inbox=b"hb") for client in clients)
    for name, channel in channels.items():
        raw = name if isinstance(name, bytes) else os.fsencode(name)
        writer.write_subs(raw, channel.subs)
        numbers = list(channel.sequences)
        if numbers:
            times = [START + index * channel.step for index in range(len(numbers))]
            data, _ = kernels.encode_messages(
                raw, numbers, times, [b""] * len(numbers), [channel.payload] * len(numbers), CRC
            )
            (root / os.fsdecode(raw) / "msgs.1.dat").write_bytes(b"\1\0\0\0" + bytes(data))
    return root
