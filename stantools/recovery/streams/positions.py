"""The positions of consumers, as far as their files tell them, within the salvaged messages.

Facts: jetstream-store.md sections 10 and 18. Nothing protects a consumer's state; a position beyond the end of the
stream would hide new messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.inspection.stream_overview import consumer_as_json
from stantools.notation import format_time
from stantools.recovery.streams.configs import SalvagedConfig, consumer_config, mended, rebuilt_consumer
from stantools.store.ranges import Ranges
from stantools.streamfiles.directory import StoredConsumer, StoredStream
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.meta import ConsumerState, decode_damaged
from stantools.streamfiles.writer import ConsumerEntry


@dataclass
class SalvagedConsumer:
    name: str
    config: SalvagedConfig
    state: ConsumerState | None  #: None: it begins where its configuration says
    notes: list[str] = field(default_factory=list)
    lossy: bool = False  #: its position or its configuration is not known

    @property
    def entry(self) -> ConsumerEntry:
        return ConsumerEntry(self.name, self.config.members, self.state)

    def as_json(self, account: str, stream: str) -> dict[str, Any]:
        values = consumer_as_json(StoredConsumer(self.name, self.config.members, self.state))
        return {"account": account, "stream": stream, **values}


def salvaged_consumers(
    directories: Sequence[StoredStream],
    version: tuple[int, int],
    replicas: int,
    assigned: Mapping[str, Mapping[str, Any]],
    states: Mapping[str, ConsumerState],
    notes: list[str],
) -> list[SalvagedConsumer]:
    """Returns the consumers of a stream's directories and of its Raft groups; the first directory is the newest.

    `assigned` are configurations, `states` positions by a cluster's Raft groups. Consumers that are left out are added
    to `notes`.
    """
    found = []
    known: dict[str, tuple[StoredStream, StoredConsumer]] = {}
    for place in directories:
        for one in place.consumers:
            there = known.get(one.name)
            if not one.name.startswith(".") and (there is None or _worse(there[1], one)):
                known[one.name] = place, one
    for name in sorted({*known, *assigned, *states}):
        directory, stored = known[name] if name in known else (None, StoredConsumer(name, None, None))
        values = stored.config
        if values is None or (values.get("Name") or name) != name:
            values = mended(directory, f"obs/{name}/") if directory else None
        if values is None and name in assigned:
            values = {"Created": format_time(1), "Name": name, **assigned[name]}
        if values is None and directory and not (directory.path / f"obs/{name}/o.dat").exists():
            continue  # a remnant of a deleted one
        config = consumer_config(values, version, replicas) if values else rebuilt_consumer(name, format_time(1))
        each = SalvagedConsumer(name, config, stored.state, list(config.notes), config.rebuilt)
        if not directory and name not in states:
            notes.append(f"consumer {name} is left out: its position is on a node that is not here, or in memory")
            continue
        if stored.state is None and directory:
            _read_damaged(directory, each)
        if (logged := states.get(name)) and (each.state is None or logged.delivered > each.state.delivered):
            each.state, each.lossy = logged, config.rebuilt
            each.notes.append("its position is that of its Raft log")
        found.append(each)
    return found


def _worse(first: StoredConsumer, second: StoredConsumer) -> bool:
    """Returns whether the second one knows more."""
    known = [(each.config is not None, each.state.delivered if each.state else (-1, -1)) for each in (first, second)]
    return known[0] < known[1]


def _read_damaged(directory: StoredStream, consumer: SalvagedConsumer) -> None:
    """Reads the remaining part of a damaged state."""
    folder = f"obs/{consumer.name}/"
    try:
        data = directory.read(f"{folder}o.dat")
        if data is None:
            return  # it was never used, or its state is gone: the configuration says where it begins
        key = directory.consumer_key(consumer.name)
        state = decode_damaged(key.unseal(data) if key else data)
    except NotPermittedError:
        raise
    except (ArchiveError, StoreUnreadableError) as problem:
        consumer.lossy = True
        consumer.notes.append(f"its position is lost ({problem.message}): it begins where its configuration says")
        return
    consumer.state, consumer.lossy = state, True
    consumer.notes.append("its state is damaged, and read as far as it goes: messages may be delivered again")


def within(consumer: SalvagedConsumer, messages: Ranges, last: int) -> None:
    """Limits a position to the salvaged messages."""
    state = consumer.state
    if state is None:
        return
    delivered, floor = state.delivered, state.ack_floor
    if delivered[1] > last:
        consumer.notes.append(f"its last delivery was {delivered[1]}, beyond the end of the stream, {last}")
        delivered = (delivered[0], last)
        floor = (floor[0], min(floor[1], last))
    pending = {each: value for each, value in state.pending.items() if each in messages and each <= last}
    redelivered = {each: count for each, count in state.redelivered.items() if each in messages and each <= last}
    if gone := len(state.pending) - len(pending):
        consumer.notes.append(f"{gone} pending messages are not there any more")
    consumer.state = ConsumerState(floor, delivered, pending, redelivered)
