"""Intact data that a start destroys: records after a cut, files that limits remove, sequences assigned again.

Salvage could keep all of it. Only suspicious places are read: files that are cut, and the ends of data files that
the server does not read.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stantools.errors import StoreUnreadableError
from stantools.escaping import text
from stantools.format.crc import Crc
from stantools.format.layout import RECORD_HEADER_SIZE, ClientRecord, SubRecord
from stantools.format.message_batch import MessageBatch
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast.changes import Change, CutChange, DeleteChange
from stantools.inspection.forecast.channel import RecoveredChannel
from stantools.inspection.forecast.channel_forecast import Harm, Loss
from stantools.inspection.forecast.recover import ForecastStart
from stantools.inspection.forecast.slices import RecoveryContext, recovered_rows
from stantools.inspection.slicesummary import held_sequences
from stantools.store.clientlog import read_clients
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE, Datastore, list_channel
from stantools.store.indexes import SliceIndex, scan_index
from stantools.store.logrepair import CLIENTS_LOG, SUBS_LOG, LogLayout
from stantools.store.logscan import LogDamage, judge_row, scan_log
from stantools.store.mapping import Buffer, mapped
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile
from stantools.store.sublog import IN_DURABLE_GROUP, STATUSES, SubStatus, read_subs

_SUBS_WORDS: dict[int, str] = {
    SubRecord.NEW: "new subscription",
    SubRecord.UPDATE: "changed subscription",
    SubRecord.DELETE: "deleted subscription",
    SubRecord.ACK: "acknowledgement",
    SubRecord.MSG: "sent message",
}
_CLIENT_WORDS: dict[int, str] = {ClientRecord.ADD: "connected client", ClientRecord.DELETE: "closed client"}


@dataclass(frozen=True)
class RemovedRecord:
    """A record, or a range of damaged bytes, after a cut."""

    file: str  #: relative to the store
    offset: int  #: first byte
    length: int  #: bytes, including the header
    intact: bool  #: its content is whole and proven: salvage would keep it
    what: str  #: `message`, a description of a log record, or the kind of damage
    sequence: int | None = None  #: sequence of the message that it contains or refers to
    sub_id: int | None = None  #: id of the subscription that it refers to
    client_id: str | None = None  #: client that it refers to


@dataclass(frozen=True)
class CutRecords:
    """Counts of the records that a cut removes."""

    intact: int = 0  #: records that salvage would keep
    sequences: Ranges = field(default_factory=Ranges)  #: their sequences, in a data file


@dataclass(frozen=True)
class CutFile:
    """A file that is cut, and the way to read it."""

    root: Path
    file: str  #: relative to the store
    offset: int  #: offset of the cut
    crc: Crc

    @property
    def layout(self) -> LogLayout | None:
        """Layout of the log; None for a data file."""
        name = self.file.rpartition("/")[2]
        return {CLIENTS_FILE: CLIENTS_LOG, SUBS_FILE: SUBS_LOG}.get(name)

    def count(self) -> CutRecords:
        """Counts the records after the cut."""
        if self.layout is not None:
            return CutRecords(sum(record.intact for record in self.records()))
        intact, parts = 0, []
        with ExitStack() as stack:
            for part in self._slice(stack):
                if isinstance(part, MessageBatch):
                    intact += part.capacity
                    parts.append(Ranges.from_sequences(part.sequence.copy()))
                elif part.repair is not None:
                    intact += 1
                    parts.append(Ranges.of([(part.repair.message.sequence, part.repair.message.sequence)]))
        return CutRecords(intact, Ranges.union(parts))

    def rows_before(self) -> int:
        """Counts the records of a log before the cut, which the server reads."""
        with mapped(self.root / self.file) as buffer:
            read = read_clients if self.layout is CLIENTS_LOG else read_subs
            return read(buffer, self.crc).rows

    def records(self) -> Iterator[RemovedRecord]:
        """Iterates over all records and damaged ranges after the cut, in file order."""
        if self.layout is not None:
            with mapped(self.root / self.file) as buffer:
                yield from self._log_records(buffer, self.layout)
            return
        with ExitStack() as stack:
            for part in self._slice(stack):
                if isinstance(part, MessageBatch):
                    rows = zip(part.offset.tolist(), part.size.tolist(), part.sequence.tolist(), strict=True)
                    for offset, size, sequence in rows:
                        length = size + RECORD_HEADER_SIZE
                        yield RemovedRecord(self.file, offset, length, True, "message", sequence)
                else:
                    known = part.sequence if part.repair is None else part.repair.message.sequence
                    intact = part.repair is not None
                    yield RemovedRecord(self.file, part.offset, part.length, intact, part.kind.value, known)

    def _slice(self, stack: ExitStack) -> Iterator[MessageBatch | DamagedRange]:
        path = self.root / self.file
        buffer = stack.enter_context(mapped(path))
        channel = self.file.rpartition("/")[0].encode("utf-8", "surrogateescape")
        index = None
        index_path = path.with_suffix(".idx")
        if index_path.is_file():
            entries = stack.enter_context(mapped(index_path))
            index = SliceIndex(entries, scan_index(entries, self.crc).rows)
        yield from SliceFile(buffer, channel, self.crc).records(self.offset, index=index)

    def _log_records(self, buffer: Buffer, layout: LogLayout) -> Iterator[RemovedRecord]:
        for part in scan_log(buffer, layout, self.crc):
            if isinstance(part, LogDamage):
                if part.end > self.offset:
                    yield self._log_damage(part)
                continue
            first = bisect_left(part.offset, self.offset)
            for offset, size in zip(part.offset[first:], part.size[first:], strict=True):
                judged = judge_row(layout, buffer, offset)
                if isinstance(judged, LogDamage):
                    yield self._log_damage(judged)
                    continue
                what = (_CLIENT_WORDS if layout is CLIENTS_LOG else _SUBS_WORDS)[judged.types[0]]
                yield RemovedRecord(
                    self.file, offset, size + RECORD_HEADER_SIZE, True, what, *_references(judged.message)
                )

    def _log_damage(self, damage: LogDamage) -> RemovedRecord:
        message = damage.message
        about = _references(message) if message is not None else ()
        return RemovedRecord(self.file, damage.offset, damage.length, message is not None, damage.kind.value, *about)


def _references(message: object) -> tuple[int | None, int | None, str | None]:
    """Returns the sequence, subscription and client that a log record refers to."""
    if isinstance(message, pb.ClientInfo | pb.ClientDelete):
        return None, None, text(message.id)
    if isinstance(message, pb.SubStateUpdate):
        return message.seqno, message.id, None
    assert isinstance(message, pb.SubState | pb.SubStateDelete)
    return None, message.id, None


def destroyed(recovery: RecoveryContext, store: Datastore, start: ForecastStart) -> list[Loss]:
    """Returns the intact data that a start destroys, see `Harm`."""
    forecast = start.forecast
    losses = [loss for change in forecast.changes.values() for loss in _file_losses(recovery, store, change)]
    if not forecast.starts:
        return losses
    for channel in start.channels:
        losses += _reused_sequences(recovery, channel)
        losses += _lost_positions(channel, forecast.clients)
    # Channels that the server does not see start over at the next message published to them.
    unseen = [path.name for path in store.symlinks] if forecast.recovered else store.server_channel_names
    for name in unseen:
        held = _stored_sequences(recovery, store.path / name)
        if held:
            losses.append(Loss(Harm.ANEW, name, name, 1, held, held.count()))
    return losses


def _file_losses(recovery: RecoveryContext, store: Datastore, change: Change) -> Iterator[Loss]:
    channel, _, file = change.path.rpartition("/")
    if isinstance(change.action, CutChange) and file.endswith(".dat"):
        assert change.after is not None
        behind = CutFile(store.path, change.path, change.after, recovery.crc).count()
        if behind.intact:
            yield Loss(Harm.CUT, channel, change.path, change.after, behind.sequences, behind.intact)
    elif isinstance(change.action, DeleteChange) and file.endswith(".dat"):
        for files in store.channel(channel).slices:
            if files.data is not None and files.data.name == file:
                held = recovery.sound_sequences(files.data, files.data_size, files.index_size)
                if held is None:
                    held = held_sequences(files, os.fsencode(channel), recovery.crc)
                if held:
                    yield Loss(Harm.REMOVED, channel, change.path, 0, held, held.count())


def _reused_sequences(recovery: RecoveryContext, channel: RecoveredChannel) -> Iterator[Loss]:
    """Iterates over the messages on disk whose sequences the server considers free."""
    last = channel.totals.last
    parts = []
    for found in channel.slices:
        if found.end < found.data_end:
            rest = CutFile(recovery.root, found.data_file, found.end, recovery.crc)
            parts.append(rest.count().sequences)
        if not found.ascending:
            for rows in recovered_rows(found, recovery.crc, channel.raw_name):
                parts.append(Ranges.from_sequences(rows.sequence[rows.sequence > np.uint64(last)]))
    again = Ranges.union(parts) - Ranges.of([(0, last)])
    if again:
        yield Loss(Harm.ANEW, channel.name, channel.name, last + 1, again, again.count())


def _lost_positions(channel: RecoveredChannel, clients: dict[bytes, pb.ClientInfo]) -> Iterator[Loss]:
    """Iterates over the durable queue groups of which all members are deleted as ghosts."""
    table = channel.subs.subscriptions
    statuses = table.statuses(clients)
    members = [(table.state(row).q_group, STATUSES[statuses[row]]) for row in table.rows(IN_DURABLE_GROUP)]
    kept = {group for group, status in members if status is not SubStatus.GHOST}
    gone = [group for group, _ in members if group not in kept]
    if gone:
        groups = tuple(text(group) for group in dict.fromkeys(gone))
        yield Loss(Harm.GHOST, channel.name, f"{channel.name}/{SUBS_FILE}", records=len(gone), groups=groups)


def _stored_sequences(recovery: RecoveryContext, directory: Path) -> Ranges:
    """Returns the sequences of the messages in a channel's directory; none if it cannot be read."""
    try:
        files = list_channel(directory)
    except StoreUnreadableError:
        return Ranges()
    return Ranges.union(held_sequences(each, files.raw_name, recovery.crc) for each in files.slices)
