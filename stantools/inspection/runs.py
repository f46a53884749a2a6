"""Sorting a channel's records into one history, duplicates, and earlier or superseded generations.

A healthy channel is one history: sequences rise through its slices. Three things break that (filestore.md section
7.7 and weaknesses W1, W6, W27):

* the same records twice, for example a copied slice: equal sequence, timestamp, size and CRC. One copy counts.
* a restart: a server that lost `server.dat` began again at sequence 1 in the same files. Everything from there on is
  a new generation.
* reused sequences: records that no index named were forgotten and their sequences assigned again. The newer record
  continues the history, the older one is superseded and becomes a generation of its own.

Records are taken in the order in which they lie on disk (slice number, offset), because timestamps may go back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import StoreUnreadableError
from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.layout import MESSAGE_OVERHEAD, RECORD_HEADER_SIZE
from stantools.format.message_batch import MessageBatch
from stantools.format.proto import store_pb2 as pb
from stantools.lazy_numpy import np
from stantools.store.directory import SliceFiles
from stantools.store.mapping import WINDOW, mapped
from stantools.store.ranges import Ranges
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import BATCH_ROWS, SliceFile, among

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class RecordRun:
    """Consecutive good records of one slice with one subject and strictly increasing sequences."""

    slice: SliceFiles
    subject: bytes  #: subject of all its records
    start: int  #: offset of its first record
    end: int  #: end of its last record
    sequences: Ranges
    count: int  #: number of records
    bytes: int  #: size in the server's accounting (payload + 40 each, filestore.md section 5.1)
    first_timestamp: int  #: of its first record, in nanoseconds
    last_timestamp: int  #: of its last record
    payload: int = 0  #: bytes of the messages' data, as stored
    largest: int = 0  #: bytes of the largest message's data
    #: Sequence and offset of some records, rising, so that a part can be read by itself.
    marks: list[tuple[int, int]] = field(default_factory=list)

    @property
    def first(self) -> int:
        return self.sequences.first

    @property
    def last(self) -> int:
        return self.sequences.last

    def place(self, sequence: int) -> int:
        """Returns the offset of a record at or shortly before a sequence."""
        before = bisect_right(self.marks, sequence, key=lambda mark: mark[0])
        return self.marks[before - 1][1] if before else self.start


#: Minimum distance in bytes between the marks of a run, however small the batches were.
_MARK_DISTANCE = 1 << 16


class RunBuilder:
    """Combines batches of good records into runs. The last run in `found` may continue."""

    def __init__(self, files: SliceFiles, found: Sequence[RecordRun] = ()) -> None:
        self.files = files
        self._pieces: list[Ranges] = []
        self._run: RecordRun | None = None
        self.runs: list[RecordRun] = list(found)  #: the runs, after `close`
        if self.runs:
            # A copy: a reader may still use the run as it was.
            run = self.runs.pop()
            self._run, self._pieces = replace(run, marks=list(run.marks)), [run.sequences]

    @property
    def last(self) -> int:
        """The last sequence of the run that is being built, 0 if there is none."""
        return self._pieces[-1].last if self._run else 0

    def add(self, batch: MessageBatch) -> None:
        """Adds a batch that directly follows the one before."""
        sequence = batch.sequence
        cuts = (np.flatnonzero(sequence[1:] <= sequence[:-1]) + 1).tolist()
        if batch.has_foreign:
            subjects = [batch.record_subject(row) for row in range(len(batch))]
            cuts = sorted({*cuts, *(row for row, pair in enumerate(pairwise(subjects), 1) if pair[0] != pair[1])})
        for low, high in pairwise([0, *cuts, len(batch)]):
            self._extend(batch.part(low, high))

    def _extend(self, part: MessageBatch) -> None:
        first, last = int(part.sequence[0]), int(part.sequence[-1])
        whole = last - first + 1 == len(part)
        self.extend(
            RecordRun(
                self.files,
                part.record_subject(0),
                start=int(part.offset[0]),
                end=part.end,
                sequences=Ranges.of([(first, last)]) if whole else Ranges.from_sequences(part.sequence),
                count=len(part),
                bytes=int(part.size.sum(dtype=np.uint64)) + MESSAGE_OVERHEAD * len(part),
                first_timestamp=int(part.timestamp[0]),
                last_timestamp=int(part.timestamp[-1]),
                payload=int(part.data_size.sum(dtype=np.uint64)),
                largest=int(part.data_size.max()),
            )
        )

    def extend(self, more: RecordRun) -> None:
        """Adds records of one subject with rising sequences, to the previous run if they continue it."""
        run = self._run
        if run and run.subject == more.subject and run.end == more.start and more.sequences.first > self.last:
            run.end = more.end
            run.count += more.count
            run.bytes += more.bytes
            run.payload += more.payload
            run.largest = max(run.largest, more.largest)
            if more.start - (run.marks[-1][1] if run.marks else run.start) >= _MARK_DISTANCE:
                run.marks.append((more.sequences.first, more.start))
            run.last_timestamp = more.last_timestamp
            self._pieces.append(more.sequences)
        else:
            self.close()
            self._pieces = [more.sequences]
            self._run = more

    def close(self) -> None:
        if self._run is not None:
            self._run.sequences = Ranges.union(self._pieces)
            self.runs.append(self._run)
            self._run = None


#: Sequence, timestamp, size, stored CRC: equal in all four means the same record.
_FINGERPRINT = [("sequence", "<u8"), ("timestamp", "<i8"), ("size", "<u4"), ("crc", "<u4")]


@dataclass(frozen=True)
class RunPart:
    run: RecordRun
    sequences: Ranges


@dataclass
class Generation:
    """A history: every sequence at most once."""

    pieces: list[RunPart] = field(default_factory=list)  #: its parts, in the order of the files
    sequences: Ranges = field(default_factory=Ranges)
    last_timestamp: int = 0  #: of the record added last, in nanoseconds
    superseded: bool = False  #: it holds only records whose sequences were assigned again

    def add(self, piece: RunPart) -> None:
        """Adds records whose sequences are not in the generation yet."""
        self.pieces.append(piece)
        self.sequences |= piece.sequences
        self.last_timestamp = piece.run.last_timestamp

    def remove(self, sequences: Ranges) -> list[RunPart]:
        """Removes records and returns them."""
        taken = [RunPart(p.run, p.sequences & sequences) for p in self.pieces]
        left = [RunPart(p.run, p.sequences - sequences) for p in self.pieces]
        self.pieces = [piece for piece in left if piece.sequences]
        self.sequences -= sequences
        return [piece for piece in taken if piece.sequences]

    def ordered(self) -> Iterator[RunPart]:
        """Iterates over the pieces, cut and sorted so that their sequences rise."""
        spans = sorted((first, last, number) for number, p in enumerate(self.pieces) for first, last in p.sequences)
        for number, group in groupby(spans, key=lambda span: span[2]):
            yield RunPart(self.pieces[number].run, Ranges.of((first, last) for first, last, _ in group))


@dataclass
class ChannelHistory:
    """The records of one channel."""

    #: Oldest first; superseded ones before the generation that replaced them. The last one is the channel's present
    #: state.
    generations: list[Generation] = field(default_factory=list)
    duplicates: list[RunPart] = field(default_factory=list)  #: second copies of records
    disordered: list[RunPart] = field(default_factory=list)  #: records that lie after records with higher sequences


def arrange(runs: Iterable[RecordRun], crc: Crc) -> ChannelHistory:
    """Sorts runs of one subject, given in file order, into a history.

    Only records whose sequences occur twice are read again.
    """
    history = ChannelHistory()
    timelines: list[Generation] = []
    superseded: dict[int, list[RunPart]] = {}
    for run in runs:
        piece = _without_duplicates(run, timelines, superseded, history, crc)
        if not piece.sequences:
            continue
        target = _choose_generation(piece, timelines)
        if target is None:
            target = Generation()
            timelines.append(target)
        overlap = target.sequences & piece.sequences
        if overlap:
            superseded.setdefault(id(target), []).extend(target.remove(overlap))
        if target.sequences and piece.sequences.first < target.sequences.last:
            history.disordered.append(piece)
        target.add(piece)
    for timeline in timelines:
        history.generations += _layers(superseded.get(id(timeline), []))
        history.generations.append(timeline)
    return history


def _layers(pieces: list[RunPart]) -> list[Generation]:
    """Distributes superseded records over the fewest generations in which every sequence is unique."""
    layers: list[Generation] = []
    for piece in pieces:
        for layer in layers:
            if not layer.sequences & piece.sequences:
                layer.add(piece)
                break
        else:
            layer = Generation(superseded=True)
            layer.add(piece)
            layers.append(layer)
    return layers


def _without_duplicates(
    run: RecordRun,
    timelines: list[Generation],
    superseded: dict[int, list[RunPart]],
    history: ChannelHistory,
    crc: Crc,
) -> RunPart:
    fresh = run.sequences
    if all(run.first > t.sequences.last for t in timelines) and not superseded:
        return RunPart(run, fresh)
    earlier = [p for t in timelines for p in t.pieces] + [p for ps in superseded.values() for p in ps]
    for piece in earlier:
        overlap = piece.sequences & fresh
        if overlap:
            same = same_records(run, piece.run, overlap, crc)
            if same:
                history.duplicates.append(RunPart(run, same))
                fresh -= same
    return RunPart(run, fresh)


def _choose_generation(piece: RunPart, timelines: list[Generation]) -> Generation | None:
    """Chooses the generation that a piece continues, or None if it begins a new one."""
    if not timelines:
        return None
    run, first = piece.run, piece.sequences.first
    ahead = [t for t in timelines if first > t.sequences.last]
    in_time = [t for t in ahead if t.last_timestamp <= run.first_timestamp]
    if in_time:
        # Of several that end at the same time, the newest.
        return max(reversed(in_time), key=lambda t: t.last_timestamp)
    if ahead:
        return ahead[-1]
    newest = timelines[-1]
    later = run.first_timestamp > newest.last_timestamp
    if newest.sequences & piece.sequences:
        # Sequences were assigned again. From 1, or from below everything, that is a restart; else a forgotten tail.
        return newest if first > max(1, newest.sequences.first) and later else None
    if first < newest.sequences.first and first == 1 and later:
        return None
    return newest


def same_records(one: RecordRun, other: RecordRun, sequences: Ranges, crc: Crc, *, sealed: bool = False) -> Ranges:
    """Returns the sequences that are the same record in both runs.

    `sequences` are in both. `sealed`: each store encrypts payloads with its own nonces, so only time
    and size are compared.
    """
    a, b = _fingerprints(one, sequences, crc), _fingerprints(other, sequences, crc)
    if sealed:
        a["crc"] = b["crc"] = 0
    if len(a) != len(b):
        common = np.intersect1d(a["sequence"], b["sequence"])
        a, b = a[np.isin(a["sequence"], common)], b[np.isin(b["sequence"], common)]
    return Ranges.from_sequences(a["sequence"][a == b])


def read_records(run: RecordRun, sequences: Ranges, crc: Crc) -> Iterator[pb.MsgProto]:
    for batch in read_run(run, sequences, crc.unchecked):
        for start, size in zip((batch.offset + RECORD_HEADER_SIZE).tolist(), batch.size.tolist(), strict=True):
            yield gogo.decode(pb.MsgProto, batch.records[start : start + size])


def _fingerprints(run: RecordRun, sequences: Ranges, crc: Crc) -> NDArray[np.void]:
    parts: list[NDArray[np.void]] = []
    for batch in read_run(run, sequences, crc.unchecked):
        part = np.empty(batch.capacity, dtype=_FINGERPRINT)
        part["sequence"] = batch.sequence
        part["timestamp"] = batch.timestamp
        part["size"] = batch.size
        place = batch.offset[:, None] + np.arange(4, 8)
        part["crc"] = np.ascontiguousarray(np.frombuffer(batch.records, np.uint8)[place]).view("<u4").reshape(-1)
        parts.append(part)
    return np.concatenate(parts) if parts else np.empty(0, dtype=_FINGERPRINT)


def read_run(
    run: RecordRun, wanted: Ranges, crc: Crc, *, rows: int = BATCH_ROWS, max_bytes: int = WINDOW
) -> Iterator[MessageBatch]:
    """Reads messages of a run again; each batch is valid until the next.

    `wanted` are sequences of the run; `rows` and `max_bytes` bound a batch. Raises StoreUnreadableError if the file
    has changed since it was scanned.
    """
    path, count, found, last = run.slice.data, wanted.count(), 0, 0
    assert path is not None
    whole = count == run.count
    start = run.start if whole else run.place(wanted.first)
    with mapped(path, sequential=True) as data:
        if len(data) < run.end:
            raise _changed(path, len(data))
        part_of_file = SliceFile(data[: run.end], run.subject, crc)
        for batch in part_of_file.records(start, rows=min(rows, run.count), max_bytes=max_bytes):
            if isinstance(batch, DamagedRange):
                raise _changed(path, batch.offset)
            sequence = batch.sequence
            rises = int(sequence[0]) > last and not bool((sequence[1:] <= sequence[:-1]).any())
            if not rises or batch.has_foreign:
                raise _changed(path, int(batch.offset[0]))
            last = int(sequence[-1])
            part = batch if whole else among(batch, wanted)
            if part.capacity:
                found += part.capacity
                yield part
            if last >= wanted.last:
                break
        if found != count or (whole and last != wanted.last):
            raise _changed(path, run.end)


def _changed(path: Path, offset: int) -> StoreUnreadableError:
    return StoreUnreadableError(
        f"{path}: changed since it was scanned, at or before offset {offset}",
        "make sure that no server uses the store and that its disk is sound, and run again",
    )
