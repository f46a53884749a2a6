"""The store in the pictures of the browser: three days of a shop, the same at every run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.damage import inflict
from stantools.store.limits import SliceLimits
from stantools.store.serverinfo import new_server_info
from stantools.store.storewriter import StoreWriter

_BEGIN = 1_793_000_000 * 10**9
_HOUR = 3600 * 10**9
_HOURS = 72
#: Channel -> messages, and whether some are missing.
_CHANNELS = {"audit.log": 6000, "orders": 24000, "orders.returned": 900, "telemetry.device-1": 15000}
_CLIENTS = ("shop-1", "shop-2", "billing", "reports", "packer-1", "packer-2")


def write_shop(directory: Path, *, damage: tuple[str, ...] = ()) -> None:
    """Writes the store.

    Args:
        directory: Where; must not exist.
        damage: Damages to do to it (`stantools sample --help` lists them).
    """
    directory.mkdir()
    crc = Crc()
    store = StoreWriter(directory, crc)
    store.write_server(new_server_info("shop"))
    store.write_clients([pb.ClientInfo(id=c.encode(), hb_inbox=f"_INBOX.{c}".encode()) for c in _CLIENTS])
    for name, count in _CHANNELS.items():
        source = random.Random(name)
        sequences = np.arange(1, count + 1, dtype=np.uint64)
        if name == "orders":  # a restore from an old copy once lost some
            sequences = sequences[(sequences < 8120) | (sequences > 8131)]
        times = _times(len(sequences), np.random.default_rng(len(name)))
        texts = [json.dumps(_content(name, int(seq), source)).encode() for seq in sequences]
        with store.slices(name.encode(), SliceLimits(max_msgs=count // 4)) as writer:
            writer.append(sequences, times, [b""] * len(texts), texts)
        store.write_subs(name.encode(), _subscriptions(name, count))
    if damage:
        inflict(directory, list(_CHANNELS), damage, crc, 7)


def _times(count: int, source: np.random.Generator) -> npt.NDArray[np.int64]:
    """More by day than by night, one rush, and two hours of silence."""
    hours = np.arange(0, _HOURS, 0.05)
    busy = 1.2 + np.sin((hours - 8) / 24 * 2 * np.pi) + 4 * np.exp(-(((hours - 37) / 1.5) ** 2))
    busy[(hours > 50) & (hours < 52.5)] = 0
    moments = source.choice(hours, size=count, p=busy / busy.sum()) + source.uniform(0, 0.05, size=count)
    return np.sort(_BEGIN + (moments * _HOUR).astype(np.int64))


def _content(name: str, seq: int, source: random.Random) -> dict[str, Any]:
    region = source.choice(("eu", "us", "asia"))
    if name == "audit.log":
        return {"entry": seq, "who": source.choice(_CLIENTS), "did": source.choice(("login", "refund", "export"))}
    if name.startswith("telemetry"):
        return {"at": seq, "celsius": round(source.gauss(21, 2), 1), "volts": round(source.gauss(3.3, 0.05), 3)}
    items = [{"sku": f"A-{source.randrange(1000, 9999)}", "qty": source.randrange(1, 5)} for _ in range(2)]
    return {"order": seq, "region": region, "state": source.choice(("open", "paid", "sent")), "items": items}


def _subscriptions(name: str, count: int) -> list[tuple[pb.SubState, list[int]]]:
    def one(number: int, client: str, behind: int, pending: int, **more: Any) -> tuple[pb.SubState, list[int]]:
        sent = count - behind
        state = pb.SubState(
            id=number, client_id=client.encode(), inbox=b"_INBOX.%d" % number, ack_inbox=b"_INBOX.ack%d" % number,
            max_in_flight=64, ack_wait_in_secs=30, last_sent=sent, **more,
        )  # fmt: skip
        return state, list(range(sent - pending + 1, sent + 1))

    if name == "orders":
        return [
            one(1, "billing", 12, 12, durable_name=b"billing", is_durable=True),
            one(2, "reports", 14200, 0, durable_name=b"reports", is_durable=True, is_closed=True),
            one(3, "packer-1", 40, 9, q_group=b"packing:packers", is_durable=True),
            one(4, "packer-2", 40, 31, q_group=b"packing:packers", is_durable=True),
            one(5, "shop-2", 0, 0),
        ]
    return [one(1, "reports", count // 3, 0, durable_name=b"reports", is_durable=True, is_closed=True)]
