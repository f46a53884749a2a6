"""What the server recovers of the channels: message slices, limits and subscriptions, channel by channel.

Facts: filestore.md sections 7.1, 7.4 and 7.5. Slices and logs are read in several threads; what they lead
to is put together in the server's order, and the first error ends the recovery as it does there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar, cast

from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES, check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, Stop
from stantools.format.quoting import quote
from stantools.inspection.forecast import report
from stantools.inspection.forecast.changes import Change, Cut, Delete, Write
from stantools.inspection.forecast.slices import (
    Recovery,
    Slice,
    SliceOutcome,
    drop_slice,
    recover_slice,
    recovered_rows,
)
from stantools.inspection.slicesummary import Held, Totals, remove_by_limits
from stantools.store.clientlog import ClientsState, read_clients
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE, ChannelFiles, Datastore, SliceFiles
from stantools.store.logscan import LogEnd, LogState
from stantools.store.mapping import Buffer, Seen, mapped
from stantools.store.ranges import Ranges
from stantools.store.reading import Rows
from stantools.store.sublog import SubsState, read_subs
from stantools.work import Task, Threads

_S = TypeVar("_S", bound=LogState)


@dataclass
class LogOutcome(Generic[_S]):
    """What the recovery of one log leads to."""

    state: _S  #: what it adds up to
    size: int = FILE_HEADER_SIZE  #: its size afterwards
    log: list[str] = field(default_factory=list)  #: lines that are logged
    changes: list[Change] = field(default_factory=list)  #: what happens to the file
    error: str = ""  #: why the server does not start, with the words around it; "" if it starts


def open_clients(recovery: Recovery, path: Path | None) -> tuple[str, list[Change]]:
    """Forecasts the opening of clients.dat, which comes before anything is read.

    Returns:
        Why it fails, or "", and what happens to the file.
    """
    if not (error := recovery.denied(CLIENTS_FILE, path)):
        if path is None:
            return "", [_created(CLIENTS_FILE)]
        with mapped(path) as buffer:
            error = check_file_version(buffer) or ""
    # What cannot be opened is named without its path.
    return (f"unable to recover client file {quote(CLIENTS_FILE)}: {error}" if error else ""), []


def recover_clients(recovery: Recovery, path: Path | None) -> LogOutcome[ClientsState]:
    """Forecasts the recovery of clients.dat."""
    outcome = _recover(recovery, path, CLIENTS_FILE, read_clients, ClientsState())
    if outcome.error:
        name = quote(recovery.full_name(CLIENTS_FILE))
        outcome.error = f"unable to recover client file {name}: {outcome.error}"
    return outcome


def recover_subs(recovery: Recovery, channel: str, files: ChannelFiles) -> LogOutcome[SubsState]:
    """Forecasts the recovery of a channel's subs.dat."""
    outcome = _recover(recovery, files.subs, f"{channel}/{SUBS_FILE}", read_subs, SubsState(), files.subs_seen)
    if outcome.error:
        outcome.error = f"unable to recover subscription store for [{channel}]: {outcome.error}"
    return outcome


def _recover(
    recovery: Recovery,
    path: Path | None,
    file: str,
    read: Callable[[Buffer, Crc], _S],
    empty: _S,
    seen: Seen | None = None,
) -> LogOutcome[_S]:
    outcome = LogOutcome(empty)
    if error := recovery.denied(file, path):
        outcome.error = error
        return outcome
    if path is None:
        outcome.changes.append(_created(file))
        outcome.state.end = LogEnd(FILE_HEADER_SIZE, Stop.END, "", FILE_HEADER_SIZE)
        return outcome
    with mapped(path, seen=seen) as buffer:
        if buffer == FILE_HEADER_BYTES:
            outcome.state.end = LogEnd(FILE_HEADER_SIZE, Stop.END, "", FILE_HEADER_SIZE)
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
        elif end.stop is Stop.BAD_CRC:
            outcome.log = report.corrupted_record(buffer, end.offset, file=name, reason=end.error, typed=True)
    if not (end.torn and recovery.truncate):
        outcome.error = end.error
    if outcome.size != end.file_size:
        outcome.changes.append(Change(file, end.file_size, outcome.size, Cut()))
    return outcome


def _created(file: str) -> Change:
    return Change(file, None, FILE_HEADER_SIZE, Write(FILE_HEADER_BYTES))


#: Nobody looked at the size of subs.dat: most are small, some take long.
_SUBS_SIZE = 1 << 15


@dataclass
class RecoveredChannel:
    """A channel after its recovery."""

    name: str
    raw_name: bytes  #: its name as in subjects
    slices: list[Slice] = field(default_factory=list)  #: its slices that hold messages, by number, after limits
    totals: Totals = field(default_factory=Totals)  #: what the server counts
    subs: SubsState = field(default_factory=SubsState)  #: its subscriptions
    subs_size: int = FILE_HEADER_SIZE  #: size of subs.dat after the recovery
    opened: str = ""  #: the file of a slice that was opened last, which errors name
    log: list[str] = field(default_factory=list)  #: lines that are logged
    changes: list[Change] = field(default_factory=list)  #: what happens to its files, in order
    error: str = ""  #: why the server does not start; "" if it starts
    version_matters: bool = False  #: another version of the server would do otherwise
    limited: bool = False  #: limits removed messages

    @property
    def unusable(self) -> bool:
        """The server has no slice to write to, and ends with a panic at the first lookup (filestore.md section 7.7)."""
        return bool(self.slices) and self.slices[-1].number <= 0

    @property
    def misplaces(self) -> bool:
        """The last slice holds some sequence twice, so that lookups of what is appended begin before its record."""
        return bool(self.slices) and (last := self.slices[-1]).rows > last.last - last.first + 1

    def overlaid(self, crc: Crc) -> Ranges:
        """Returns the sequences of other slices that the last one will span when a message is appended to it."""
        if not self.slices:
            return Ranges()
        *others, last = self.slices
        if all(each.last < last.first for each in others):
            return Ranges()
        own = Ranges.from_sequences(Rows.joined(recovered_rows(last, crc, self.raw_name)).sequence)
        spans = Ranges.of((each.first, each.last) for each in others)
        return (spans & Ranges.of([(last.first, self.totals.last)])) - own

    def add(self, outcome: SliceOutcome) -> None:
        """Adds what the recovery of a slice leads to."""
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

    def complete(self, recovery: Recovery, subs: LogOutcome[SubsState]) -> None:
        """Applies limits, now that all slices are there, and adds what the recovery of subs.dat leads to."""
        self.slices.sort(key=lambda found: found.number)
        _apply_limits(self, recovery)
        self.subs, self.subs_size = subs.state, subs.size
        self.log += subs.log
        self.changes += subs.changes
        self.error = subs.error


#: A part of a channel's recovery: that of a slice, or of its subscriptions, which come last.
_Part = tuple[RecoveredChannel, SliceOutcome | LogOutcome[SubsState]]


def recover_channels(recovery: Recovery, store: Datastore) -> Iterator[RecoveredChannel]:
    """Forecasts the recovery of all channels, in the server's order; one with an error is the last one."""
    tasks = (task for name in store.server_channel_names for task in _tasks(recovery, store, name))
    for channel, part in Threads(recovery.options.workers).tasks(tasks):
        if isinstance(part, SliceOutcome):
            channel.add(part)
        else:
            channel.complete(recovery, part)
        if channel.error or isinstance(part, LogOutcome):
            yield channel
        if channel.error:
            return


def _tasks(recovery: Recovery, store: Datastore, name: str) -> Iterator[Task[_Part]]:
    """The parts of a channel's recovery: its slices in lexical order of their names, then its subscriptions."""
    channel = RecoveredChannel(name, os.fsencode(name))

    def part(size: int, work: Callable[[], SliceOutcome | LogOutcome[SubsState]]) -> Task[_Part]:
        return Task(size, lambda: (channel, work()))

    directory = store.path / name
    if not recovery.access.may_list(directory):
        denied = f"open {recovery.full_name(name)}: permission denied"
        yield part(0, lambda: SliceOutcome(error=denied))
        return
    files = store.channel(name)
    last = max((each.number for each in files.slices), default=0)
    for entry in _lexical(files):
        if isinstance(entry, Path):
            misnamed = f"message log has an invalid name: {entry.name}"
            yield part(0, partial(SliceOutcome, error=misnamed))
        elif recovery.drop_begun and entry.number == last and not entry.data_size and entry.index is None:
            yield part(0, partial(drop_slice, recovery, name, entry))
        else:
            size = entry.data_size if entry.index is None else entry.index_size
            yield part(size, partial(recover_slice, recovery, name, channel.raw_name, entry))
    yield part(_SUBS_SIZE, partial(recover_subs, recovery, name, files))


def _lexical(files: ChannelFiles) -> list[SliceFiles | Path]:
    entries: list[SliceFiles | Path] = [*files.slices, *files.misnamed]
    return sorted(entries, key=lambda entry: os.fsencode(entry.name))


def _apply_limits(channel: RecoveredChannel, recovery: Recovery) -> None:
    """Removes what limits remove; a slice that loses all its messages is deleted, unless it is the last one."""
    slices, options = channel.slices, recovery.options
    now_ns = time.time_ns() if options.now_ns is None else options.now_ns
    held = [
        Held(each.rows, each.bytes, partial(recovered_rows, each, recovery.crc, channel.raw_name)) for each in slices
    ]
    removed = remove_by_limits(held, channel.totals, options.limits.limits_for(channel.name), now_ns)
    if removed is None:
        return
    channel.limited = True
    emptied, gone = removed
    if emptied == len(slices):
        emptied, gone = emptied - 1, slices[-1].rows
    for each in slices[:emptied]:
        channel.changes.append(Change(each.data_file, each.data_size, None, Delete()))
        channel.changes.append(Change(each.index_file, each.index_size, None, Delete()))
    del slices[:emptied]
    slices[0].removed, slices[0].first = gone, channel.totals.first
