"""The server's recovery of the channels: message slices, limits and subscriptions, channel by channel.

Facts: filestore.md sections 7.1, 7.4 and 7.5. Slices and logs are read in several threads; their results are
combined in the server's order, and the first error ends the recovery as it does there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar, cast

from stantools.format.columns import MessageRecords
from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES, check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, ScanStop
from stantools.format.quoting import quote
from stantools.inspection.forecast import report
from stantools.inspection.forecast.changes import Change, CutChange, DeleteChange, WriteChange
from stantools.inspection.forecast.slices import (
    RecoveredSlice,
    RecoveryContext,
    SliceOutcome,
    drop_slice,
    recover_slice,
    recovered_rows,
)
from stantools.inspection.slicesummary import LimitedSlice, ServerTotals, remove_by_limits
from stantools.store.clientlog import ClientsState, read_clients
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE, ChannelFiles, Datastore, FileSnapshot, SliceFiles
from stantools.store.logscan import LogEnd, LogState
from stantools.store.mapping import Buffer, mapped
from stantools.store.ranges import Ranges
from stantools.store.sublog import SubsState, read_subs
from stantools.work import ThreadWork, WorkItem

_S = TypeVar("_S", bound=LogState)


@dataclass
class LogOutcome(Generic[_S]):
    """The result of the recovery of one log."""

    state: _S  #: folded state
    size: int = FILE_HEADER_SIZE  #: size after the recovery
    log: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)  #: changes to the file
    error: str = ""  #: reason why the server does not start, in the server's words; "" if it starts


def open_clients(recovery: RecoveryContext, path: Path | None) -> tuple[str, list[Change]]:
    """Forecasts the opening of clients.dat, the first step of the recovery.

    Returns why it fails ("" if it does not), and the changes to the file.
    """
    if not (error := recovery.denied(CLIENTS_FILE, path)):
        if path is None:
            return "", [_created(CLIENTS_FILE)]
        with mapped(path) as buffer:
            error = check_file_version(buffer) or ""
    # The server's error for a file that cannot be opened does not name its path.
    return (f"unable to recover client file {quote(CLIENTS_FILE)}: {error}" if error else ""), []


def recover_clients(recovery: RecoveryContext, path: Path | None) -> LogOutcome[ClientsState]:
    outcome = _recover(recovery, path, CLIENTS_FILE, read_clients, ClientsState())
    if outcome.error:
        name = quote(recovery.full_name(CLIENTS_FILE))
        outcome.error = f"unable to recover client file {name}: {outcome.error}"
    return outcome


def recover_subs(recovery: RecoveryContext, channel: str, files: ChannelFiles) -> LogOutcome[SubsState]:
    outcome = _recover(recovery, files.subs, f"{channel}/{SUBS_FILE}", read_subs, SubsState(), files.subs_seen)
    if outcome.error:
        outcome.error = f"unable to recover subscription store for [{channel}]: {outcome.error}"
    return outcome


def _recover(
    recovery: RecoveryContext,
    path: Path | None,
    file: str,
    read: Callable[[Buffer, Crc], _S],
    empty: _S,
    snapshot: FileSnapshot | None = None,
) -> LogOutcome[_S]:
    outcome = LogOutcome(empty)
    if error := recovery.denied(file, path):
        outcome.error = error
        return outcome
    if path is None:
        outcome.changes.append(_created(file))
        outcome.state.end = LogEnd(FILE_HEADER_SIZE, ScanStop.END, "", FILE_HEADER_SIZE)
        return outcome
    with mapped(path, snapshot=snapshot) as buffer:
        if buffer == FILE_HEADER_BYTES:
            outcome.state.end = LogEnd(FILE_HEADER_SIZE, ScanStop.END, "", FILE_HEADER_SIZE)
            return outcome
        if path not in recovery.folds:
            recovery.folds[path] = read(buffer, recovery.crc)
        outcome.state = cast(_S, recovery.folds[path])
        end = outcome.state.end
        assert end is not None
        outcome.size = end.size_after(truncate=recovery.truncate)
        name = recovery.full_name(file)
        if end.torn:
            outcome.log = report.torn_record(
                buffer, end.offset, file=name, store=recovery.store_name, typed=True, truncate=recovery.truncate
            )
            if recovery.truncate:
                outcome.log += report.repaired(name, end.offset)
        elif end.stop is ScanStop.BAD_CRC:
            outcome.log = report.corrupted_record(buffer, end.offset, file=name, reason=end.error, typed=True)
    if not (end.torn and recovery.truncate):
        outcome.error = end.error
    if outcome.size != end.file_size:
        outcome.changes.append(Change(file, end.file_size, outcome.size, CutChange()))
    return outcome


def _created(file: str) -> Change:
    return Change(file, None, FILE_HEADER_SIZE, WriteChange(FILE_HEADER_BYTES))


#: Assumed size of a subs.dat whose size is unknown: most are small, some take long.
_SUBS_SIZE = 1 << 15


@dataclass
class RecoveredChannel:
    """A channel after its recovery."""

    name: str
    raw_name: bytes  #: name as in subjects
    slices: list[RecoveredSlice] = field(default_factory=list)  #: slices that hold messages, by number, after limits
    totals: ServerTotals = field(default_factory=ServerTotals)  #: counts of the server
    subs: SubsState = field(default_factory=SubsState)
    subs_size: int = FILE_HEADER_SIZE  #: size of subs.dat after the recovery
    opened: str = ""  #: slice file opened last, which errors name
    log: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)  #: changes to its files, in order
    error: str = ""  #: reason why the server does not start; "" if it starts
    version_matters: bool = False  #: another version of the server has another outcome
    limited: bool = False  #: limits removed messages

    @property
    def unusable(self) -> bool:
        """The server has no slice to write to, and ends with a panic at the first lookup (filestore.md section 7.7)."""
        return bool(self.slices) and self.slices[-1].number <= 0

    @property
    def misplaces(self) -> bool:
        """The last slice holds a sequence twice, so that lookups of appended messages begin before their record."""
        return bool(self.slices) and (last := self.slices[-1]).rows > last.last - last.first + 1

    def overlaid(self, crc: Crc) -> Ranges:
        """Returns the sequences of other slices that the last one will span when a message is appended to it."""
        if not self.slices:
            return Ranges()
        *others, last = self.slices
        if all(each.last < last.first for each in others):
            return Ranges()
        own = Ranges.from_sequences(MessageRecords.joined(recovered_rows(last, crc, self.raw_name)).sequence)
        spans = Ranges.of((each.first, each.last) for each in others)
        return (spans & Ranges.of([(last.first, self.totals.last)])) - own

    def add(self, outcome: SliceOutcome) -> None:
        self.opened = outcome.opened or self.opened
        self.log += outcome.log
        self.version_matters |= outcome.version_matters
        self.changes += outcome.changes
        if outcome.error:
            where = f"[{self.name}](file: {quote(self.opened)})"
            self.error = f"unable to recover message store for {where}: {outcome.error}"
        elif (found := outcome.slice) is not None:
            self.slices.append(found)
            self.totals.add(found.first, found.last, found.rows, found.bytes)

    def complete(self, recovery: RecoveryContext, subs: LogOutcome[SubsState]) -> None:
        """Applies limits after all slices are there, and adds the result for subs.dat."""
        self.slices.sort(key=lambda found: found.number)
        _apply_limits(self, recovery)
        self.subs, self.subs_size = subs.state, subs.size
        self.log += subs.log
        self.changes += subs.changes
        self.error = subs.error


#: A part of a channel's recovery: a slice, or its subscriptions, which come last.
_Part = tuple[RecoveredChannel, SliceOutcome | LogOutcome[SubsState]]


def recover_channels(recovery: RecoveryContext, store: Datastore) -> Iterator[RecoveredChannel]:
    """Forecasts the recovery of all channels, in the server's order; it ends with the first one that has an error."""
    tasks = (task for name in store.server_channel_names for task in _tasks(recovery, store, name))
    for channel, part in ThreadWork(recovery.options.workers).tasks(tasks):
        if isinstance(part, SliceOutcome):
            channel.add(part)
        else:
            channel.complete(recovery, part)
        if channel.error or isinstance(part, LogOutcome):
            yield channel
        if channel.error:
            return


def _tasks(recovery: RecoveryContext, store: Datastore, name: str) -> Iterator[WorkItem[_Part]]:
    """The parts of a channel's recovery: its slices in lexical order of their names, then its subscriptions."""
    channel = RecoveredChannel(name, os.fsencode(name))

    def part(size: int, work: Callable[[], SliceOutcome | LogOutcome[SubsState]]) -> WorkItem[_Part]:
        return WorkItem(size, lambda: (channel, work()))

    directory = store.path / name
    if not recovery.access.may_list(directory):
        denied = f"open {recovery.full_name(name)}: permission denied"
        yield part(0, lambda: SliceOutcome(error=denied))
        return
    files = store.channel(name)
    last = max((each.number for each in files.slices), default=0)
    entries: list[SliceFiles | Path] = [*files.slices, *files.misnamed]
    for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
        if isinstance(entry, Path):
            misnamed = f"message log has an invalid name: {entry.name}"
            yield part(0, partial(SliceOutcome, error=misnamed))
        elif recovery.drop_begun and entry.number == last and not entry.data_size and entry.index is None:
            yield part(0, partial(drop_slice, recovery, name, entry))
        else:
            size = entry.data_size if entry.index is None else entry.index_size
            yield part(size, partial(recover_slice, recovery, name, channel.raw_name, entry))
    yield part(_SUBS_SIZE, partial(recover_subs, recovery, name, files))


def _apply_limits(channel: RecoveredChannel, recovery: RecoveryContext) -> None:
    """Removes messages beyond the limits; a slice that loses all of them is deleted, unless it is the last one."""
    slices, options = channel.slices, recovery.options
    now_ns = time.time_ns() if options.now_ns is None else options.now_ns
    held = [
        LimitedSlice(each.rows, each.bytes, partial(recovered_rows, each, recovery.crc, channel.raw_name))
        for each in slices
    ]
    removed = remove_by_limits(held, channel.totals, options.limits.limits_for(channel.name), now_ns)
    if removed is None:
        return
    channel.limited = True
    emptied, gone = removed
    if emptied == len(slices):
        emptied, gone = emptied - 1, slices[-1].rows
    for each in slices[:emptied]:
        channel.changes.append(Change(each.data_file, each.data_size, None, DeleteChange()))
        channel.changes.append(Change(each.index_file, each.index_size, None, DeleteChange()))
    del slices[:emptied]
    slices[0].removed, slices[0].first = gone, channel.totals.first
