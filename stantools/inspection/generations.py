"""Sorting a channel's records into one history, duplicates, and earlier or superseded generations.

A healthy channel is one history: sequences rise through its slices. Three things break that
(filestore.md section 7.7 and weaknesses W1, W6, W27):

* the same records twice, for example a copied slice: equal sequence, timestamp, size and CRC. One copy counts.
* a restart: a server that lost `server.dat` began again at sequence 1 in the same files. Everything from there on is
  a new generation.
* reused sequences: records that no index named were forgotten and their sequences given again. The newer record
  continues the history, the older one is superseded and becomes a generation of its own.

Records are taken in the order in which they lie on disk (slice number, offset), because timestamps may go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.inspection.runs import Run
from stantools.store.mapping import mapped
from stantools.store.ranges import Ranges
from stantools.store.reading import BATCH_ROWS

#: sequence, timestamp, size, stored CRC: equal in all four means the same record.
_FINGERPRINT = np.dtype([("sequence", "<u8"), ("timestamp", "<i8"), ("size", "<u4"), ("crc", "<u4")])


@dataclass(frozen=True)
class Piece:
    """Part of a run."""

    run: Run
    sequences: Ranges


@dataclass
class Generation:
    """A history: every sequence at most once.

    Attributes:
        pieces: What it consists of, in the order of the files.
        sequences: Which sequences it holds.
        last_timestamp: Of the record that was added last, in nanoseconds.
        superseded: It holds only records whose sequences were given again.
    """

    pieces: list[Piece] = field(default_factory=list)
    sequences: Ranges = field(default_factory=Ranges)
    last_timestamp: int = 0
    superseded: bool = False

    def add(self, piece: Piece) -> None:
        """Adds records whose sequences are not in the generation yet."""
        self.pieces.append(piece)
        self.sequences |= piece.sequences
        self.last_timestamp = piece.run.last_timestamp

    def remove(self, sequences: Ranges) -> list[Piece]:
        """Takes records out and returns them."""
        taken = [Piece(p.run, p.sequences & sequences) for p in self.pieces]
        left = [Piece(p.run, p.sequences - sequences) for p in self.pieces]
        self.pieces = [piece for piece in left if piece.sequences]
        self.sequences -= sequences
        return [piece for piece in taken if piece.sequences]

    def ordered(self) -> Iterator[Piece]:
        """Gives the pieces cut and sorted so that copying them in turn gives rising sequences."""
        spans = sorted((first, last, number) for number, p in enumerate(self.pieces) for first, last in p.sequences)
        for number, group in groupby(spans, key=lambda span: span[2]):
            yield Piece(self.pieces[number].run, Ranges.of((first, last) for first, last, _ in group))


@dataclass
class History:
    """The result for one channel.

    Attributes:
        generations: Oldest first; superseded ones before the generation that took their place. The last one is
            what the channel is now. Empty if there are no records.
        duplicates: Records that are there a second time.
        disordered: Records that lie behind records with higher sequences.
    """

    generations: list[Generation] = field(default_factory=list)
    duplicates: list[Piece] = field(default_factory=list)
    disordered: list[Piece] = field(default_factory=list)

    @property
    def current(self) -> Generation:
        """The newest generation."""
        return self.generations[-1] if self.generations else Generation()


def arrange(runs: Iterable[Run], crc: Crc) -> History:
    """Sorts runs of one subject, given in file order, into a history.

    Only records whose sequences occur twice are read again.
    """
    history = History()
    timelines: list[Generation] = []
    superseded: dict[int, list[Piece]] = {}
    for run in runs:
        piece = _without_duplicates(run, timelines, superseded, history, crc)
        if not piece.sequences:
            continue
        target = _place(piece, timelines)
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


def _layers(pieces: list[Piece]) -> list[Generation]:
    """Puts superseded records into as few generations as keep every sequence single."""
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
    run: Run,
    timelines: list[Generation],
    superseded: dict[int, list[Piece]],
    history: History,
    crc: Crc,
) -> Piece:
    fresh = run.sequences
    if all(run.first > t.sequences.last for t in timelines) and not superseded:
        return Piece(run, fresh)
    earlier = [p for t in timelines for p in t.pieces] + [p for ps in superseded.values() for p in ps]
    for piece in earlier:
        overlap = piece.sequences & fresh
        if overlap:
            same = same_records(run, piece.run, overlap, crc)
            if same:
                history.duplicates.append(Piece(run, same))
                fresh -= same
    return Piece(run, fresh)


def _place(piece: Piece, timelines: list[Generation]) -> Generation | None:
    """Chooses the generation that a piece goes on, or None if it begins a new one."""
    if not timelines:
        return None
    run, first = piece.run, piece.sequences.first
    ahead = [t for t in timelines if first > t.sequences.last]
    in_time = [t for t in ahead if t.last_timestamp <= run.first_timestamp]
    if in_time:
        return max(in_time, key=lambda t: t.last_timestamp)
    if ahead:
        return ahead[-1]
    newest = timelines[-1]
    later = run.first_timestamp > newest.last_timestamp
    if newest.sequences & piece.sequences:
        # Sequences were given again. From 1, or from below everything, that is a restart; else a forgotten tail.
        return newest if first > max(1, newest.sequences.first) and later else None
    if first < newest.sequences.first and first == 1 and later:
        return None
    return newest


def same_records(one: Run, other: Run, sequences: Ranges, crc: Crc) -> Ranges:
    """Returns which of the sequences are the same record in both runs."""
    a, b = _fingerprints(one, sequences, crc), _fingerprints(other, sequences, crc)
    if len(a) != len(b):
        common = np.intersect1d(a["sequence"], b["sequence"])
        a, b = a[np.isin(a["sequence"], common)], b[np.isin(b["sequence"], common)]
    return Ranges.from_sequences(a["sequence"][a == b])


def _fingerprints(run: Run, sequences: Ranges, crc: Crc) -> npt.NDArray[np.void]:
    assert run.slice.data is not None
    parts: list[npt.NDArray[np.void]] = []
    columns = MessageColumns(BATCH_ROWS)
    with mapped(run.slice.data) as data:
        header = np.frombuffer(data, dtype=np.uint8)
        at = run.start
        while at < run.end:
            rows, at, _ = kernels.scan_messages(data, at, run.end, crc, False, run.subject, columns)
            if not rows:
                break
            batch = columns.take(rows)
            wanted = sequences.select(batch.sequence)
            part = np.empty(int(wanted.sum()), dtype=_FINGERPRINT)
            part["sequence"] = batch.sequence[wanted]
            part["timestamp"] = batch.timestamp[wanted]
            part["size"] = batch.size[wanted]
            place = batch.offset[wanted][:, None] + np.arange(4, 8)
            part["crc"] = np.ascontiguousarray(header[place]).view("<u4").reshape(-1)
            parts.append(part)
        del header
    return np.concatenate(parts) if parts else np.empty(0, dtype=_FINGERPRINT)
