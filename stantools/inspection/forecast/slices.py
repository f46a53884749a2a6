"""The server's recovery of one message slice: the decision table of filestore.md section 7.6.

    index                  then
    clean end, records     check the last message; good: use the index, else log, rebuild
    clean end, no records  scan the data file
    a record of zeros      cut the index there, then as after a clean end
    torn or wrong CRC      log, rebuild
    missing                create it, scan the data file

Rebuilding is a scan of the data file into a new index. A scan that fails deletes the index and ends the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stantools.format import kernels
from stantools.format.columns import MessageColumns, MessageRecords
from stantools.format.crc import Crc
from stantools.format.envelope import EOF_TEXT, FILE_HEADER_BYTES, check_file_version, crc_error_text
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    INDEX_RECORD,
    INDEX_RECORD_SIZE,
    MESSAGE_OVERHEAD,
    RECORD_HEADER_SIZE,
    ScanStop,
)
from stantools.format.quoting import quote
from stantools.inspection.forecast import report
from stantools.inspection.forecast.changes import Change, CutChange, DeleteChange, RebuildIndex, WriteChange
from stantools.inspection.forecast.server_options import FileAccess, ServerOptions
from stantools.inspection.forecast.server_reading import DataScan, check_last_message, scan_data
from stantools.inspection.forecast.sound_slices import SoundSlice
from stantools.store.directory import SliceFiles
from stantools.store.indexes import IndexScan, SliceIndex, scan_index
from stantools.store.logscan import LogState
from stantools.store.mapping import Buffer, MappedWindow, mapped
from stantools.store.ranges import Ranges
from stantools.store.slice_reader import BATCH_ROWS


@dataclass(slots=True)
class RecoveredSlice:
    """A recovered slice; it holds at least one message."""

    number: int
    data: Path
    data_file: str  #: the data file, relative to the store
    data_size: int  #: size of the data file now
    data_end: int  #: its size after the recovery
    end: int  #: end of the last message that the server knows
    #: The index file if its records are used as they are; None if it is rewritten from the data.
    index: Path | None
    index_file: str  #: the index, relative to the store
    index_size: int | None  #: size of the index now, None if there is none
    rows: int = 0  #: messages ever stored in the slice
    bytes: int = 0  #: their bytes in the server's accounting
    first: int = 0  #: sequence of the first message
    last: int = 0  #: sequence of the last message
    ascending: bool = True  #: sequences rise from message to message
    removed: int = 0  #: messages at the front that limits have removed


@dataclass
class SliceOutcome:
    """The result of the recovery of one slice."""

    slice: RecoveredSlice | None = None  #: None if it holds no message
    log: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)  #: changes to its files
    error: str = ""  #: reason why the server does not start; "" if it starts
    opened: str = ""  #: file opened last, which the server's error names; "" if none was opened
    version_matters: bool = False  #: another version of the server has another outcome


@dataclass(frozen=True)
class RecoveryContext:
    """Constants of one start."""

    root: Path  #: the store's directory
    options: ServerOptions
    access: FileAccess  #: permissions of the server's user
    truncate: bool  #: with the truncate option
    scans: dict[Path, DataScan]  #: scans of data files for an earlier forecast of the same store
    folds: dict[Path, LogState] = field(default_factory=dict)  #: folds of logs for it
    #: Scans of indexes, by file and size.
    index_scans: dict[tuple[Path, int], IndexScan] = field(default_factory=dict)
    sound: Mapping[Path, SoundSlice] = field(default_factory=dict)  #: sound slices, by data file
    #: For the reference broker, unlike any server: a last slice without an index and without a byte is removed. A
    #: server that is killed at that moment leaves one, and does not start again.
    drop_begun: bool = False

    @property
    def crc(self) -> Crc:
        return self.options.crc

    @property
    def store_name(self) -> str:
        """The store's directory as the server names it."""
        return self.options.store_name or str(self.root)

    def sound_sequences(self, data: Path, data_size: int, index_size: int | None) -> Ranges | None:
        """Returns the sequences of a slice that was found sound at these sizes of its files, else None."""
        known = self.sound.get(data)
        return known.sequences if known and (known.data_size, known.index_size) == (data_size, index_size) else None

    def full_name(self, file: str) -> str:
        """Returns the full path of a file of the store, as the server names it."""
        return f"{self.store_name}/{file}"

    def denied(self, file: str, path: Path | None) -> str:
        """Returns the server's error for opening a file, or for creating a missing one; "" if there is none."""
        access = self.access
        if path is None and (self.root / file).is_dir():
            return f"open {self.full_name(file)}: is a directory"
        allowed = access.may_change((self.root / file).parent) if path is None else access.may_open(path)
        return "" if allowed else f"open {self.full_name(file)}: permission denied"


def recover_slice(recovery: RecoveryContext, channel: str, raw_channel: bytes, files: SliceFiles) -> SliceOutcome:
    assert files.data is not None
    data_file = f"{channel}/{files.data.name}"
    index_file = f"{channel}/msgs.{files.number}.idx"
    outcome = SliceOutcome(opened=data_file)
    if denied := recovery.denied(data_file, files.data):
        outcome.error = denied
        return outcome
    with mapped(files.data) as data:
        if text := check_file_version(data):
            outcome.error = text
            return outcome
        outcome.opened = index_file
        if denied := recovery.denied(index_file, files.index):
            outcome.error = denied
            return outcome
        found = RecoveredSlice(
            files.number, files.data, data_file, len(data), len(data), len(data), files.index, index_file, None
        )  # fmt: skip
        step = _SliceStep(recovery, raw_channel, data, found, outcome)
        if files.index is None:
            outcome.changes.append(Change(index_file, None, FILE_HEADER_SIZE, WriteChange(FILE_HEADER_BYTES)))
            step.scan(None)
            return outcome
        with mapped(files.index) as index:
            found.index_size = len(index)
            if text := check_file_version(index):
                outcome.error = text
            else:
                step.read_index(index, files.index)
    return outcome


def drop_slice(recovery: RecoveryContext, channel: str, files: SliceFiles) -> SliceOutcome:
    """Plans the removal of an empty slice."""
    assert files.data is not None
    file = f"{channel}/{files.data.name}"
    name = quote(recovery.full_name(file))
    line = f"File {name} is empty and has no index: a slice that was begun and not used. Removed, nothing is lost"
    return SliceOutcome(log=[report.warning(line)], changes=[Change(file, 0, None, DeleteChange())], opened=file)


@dataclass
class _SliceStep:
    recovery: RecoveryContext
    channel: bytes
    data: Buffer
    found: RecoveredSlice
    outcome: SliceOutcome

    def read_index(self, index: Buffer, file: Path) -> None:
        """Uses the index, or determines why not."""
        found, options, crc = self.found, self.recovery.options, self.recovery.crc
        scans, key = self.recovery.index_scans, (file, len(index))
        if (scanned := scans.get(key)) is None:
            scanned = scans[key] = scan_index(index, crc)
        count, stop = scanned.rows, scanned.stop
        end = FILE_HEADER_SIZE + count * INDEX_RECORD_SIZE
        if stop is ScanStop.ZEROS:
            self.outcome.changes.append(Change(found.index_file, len(index), end, CutChange()))
        elif stop is ScanStop.SHORT_HEADER:
            self._rebuild(index, EOF_TEXT)
            return
        elif stop is ScanStop.BAD_CRC:
            *_, stored = INDEX_RECORD.unpack_from(index, end)
            self._rebuild(index, crc_error_text(stored, crc(index[end : end + INDEX_RECORD_SIZE - 4])))
            return
        if count == 0:
            self.scan(index, header_only=True)
            return
        sequence, offset, _, size, _ = INDEX_RECORD.unpack_from(index, end - INDEX_RECORD_SIZE)
        wrong, otherwise = (
            check_last_message(self.data, sequence, offset, size, crc, since_0_25=since)
            for since in (options.since_0_25, not options.since_0_25)
        )
        self.outcome.version_matters = bool(wrong) != bool(otherwise)
        if wrong:
            name = quote(self.recovery.full_name(found.data_file))
            wrong = f"Verification of last message for file {name} failed: {wrong}"
            self.outcome.log.append(report.error(wrong))
            self._rebuild(index, wrong)
            return
        found.end = offset + RECORD_HEADER_SIZE + size
        found.rows, found.bytes = count, scanned.sizes + MESSAGE_OVERHEAD * count
        found.first, found.last = INDEX_RECORD.unpack_from(index, FILE_HEADER_SIZE)[0], sequence
        found.ascending = scanned.rises
        self.outcome.slice = found

    def _rebuild(self, index: Buffer, reason: str) -> None:
        name = quote(self.recovery.full_name(self.found.index_file))
        self.outcome.log.append(
            report.error(f"Error with index file {name}: {reason}. Truncating and recovering from data file")
        )
        self.scan(index)

    def scan(self, index: Buffer | None, *, header_only: bool = False) -> None:
        """Scans the data file into a new index.

        `header_only`: the index is there and holds nothing. If something is wrong, the server then takes the index
        for the file that it scans, and fails (a defect, filestore.md section 7.6).
        """
        found, recovery = self.found, self.recovery
        result = recovery.scans.get(found.data)
        if result is None:
            result = scan_data(self.data, self.channel, recovery.crc, index)
            recovery.scans[found.data] = result
        if error := self._data_error(result, header_only=header_only):
            self.outcome.error = error
            self.outcome.changes.append(Change(found.index_file, found.index_size, None, DeleteChange()))
            return
        found.index, found.end = None, result.end
        found.rows, found.bytes, found.ascending = result.count, result.bytes, result.ascending
        found.first, found.last = result.first, result.last
        if found.data_end != found.data_size:
            self.outcome.changes.append(Change(found.data_file, found.data_size, found.data_end, CutChange()))
        rebuilt = RebuildIndex(found.data_file, result.end, result.count)
        if not result.same_index:
            self.outcome.changes.append(Change(found.index_file, found.index_size, rebuilt.size, rebuilt))
        if result.count:
            self.outcome.slice = found

    def _data_error(self, result: DataScan, *, header_only: bool) -> str:
        """Returns why the server does not start after a scan, "" if it continues; logs, and sets the new file end."""
        found, recovery, log = self.found, self.recovery, self.outcome.log
        torn = result.stop in (ScanStop.SHORT_HEADER, ScanStop.SHORT_PAYLOAD)
        repaired = torn and recovery.truncate and not header_only
        name = recovery.full_name(found.index_file if header_only else found.data_file)
        # The server takes the index for the data file here, and shows no bytes of it.
        shown = self.data[: result.end] if header_only else self.data
        if torn:
            store, option = recovery.store_name, recovery.truncate
            log += report.torn_record(shown, result.end, file=name, store=store, typed=False, truncate=option)
            if repaired:
                log += report.repaired(name, result.end)
        elif result.stop is ScanStop.BAD_CRC:
            log += report.corrupted_record(shown, result.end, file=name, reason=result.error, typed=False)
        if header_only and (result.stop is ScanStop.ZEROS or (torn and recovery.truncate)):
            closed = f"write {name}: file already closed"
            if not torn:
                return closed
            return f"unable to repair file {quote(name)} by truncating at offset {result.end}: {closed}"
        if result.stop is ScanStop.ZEROS or repaired:
            found.data_end = result.end
            return ""
        return EOF_TEXT if torn else result.error


def recovered_rows(found: RecoveredSlice, crc: Crc, channel: bytes) -> Iterator[MessageRecords]:
    """Iterates over all messages of a recovered slice, including removed ones; each part is valid until the next."""
    if found.index is None:
        with mapped(found.data) as data:
            yield from data_batches(data, found.data_end, crc, channel)
    else:
        with mapped(found.index) as index:
            yield from SliceIndex(index, found.rows).parts()


def data_batches(data: Buffer, end: int, crc: Crc, channel: bytes) -> Iterator[MessageColumns]:
    """Iterates over the good records of a data file in batches, each valid until the next."""
    columns = MessageColumns(BATCH_ROWS)
    window = MappedWindow(data)
    at, rows = FILE_HEADER_SIZE, BATCH_ROWS
    while rows == BATCH_ROWS and at < end - RECORD_HEADER_SIZE:
        window.reach(at)
        rows, at, _ = kernels.scan_messages(data, at, end, crc, channel, columns)
        if rows:
            yield columns.take(rows)
