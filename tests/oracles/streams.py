"""The kernels of streams in Python, which the compiled ones are compared with.

What many clients publish in a round of the event loop are a few messages for each stream, too few for numpy, and too
many for a dozen of calls each.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from stantools.nats.frames import HEADER_SIZE, PAYLOAD_SIZE, SUBJECT_SIZE, WIDTH, rows
from stantools.streamfiles.layout import EMPTY_RECORD_SIZE, HEADER_LENGTH_SIZE, MAX_RECORD_SIZE, MAX_SUBJECT_SIZE
from stantools.streamfiles.records import tombstone
from tests.oracles.streamfiles import encode_record

if TYPE_CHECKING:
    from broker.stores.streams.contents import Contents, RowSegment
    from broker.stores.streams.subject_filter import SubjectRows
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames


def measure_rows(frames: Frames, begin: int, end: int) -> tuple[int, int, int, int, int]:
    """Returns the sizes of messages."""
    _check_rows(frames, begin, end)
    headers, payloads, subjects = (frames[begin:end, column] for column in (HEADER_SIZE, PAYLOAD_SIZE, SUBJECT_SIZE))
    return (
        int((headers != 0).sum()),
        int(payloads.sum(dtype="i8")),
        int(subjects.sum(dtype="i8")),
        max(int(payloads.max()), 0),
        max(int(subjects.max()), 0),
    )


def enter_rows(
    contents: Contents,
    buffer: Buffer,
    frames: Frames,
    begin: int,
    end: int,
    time: int,
    key: bytes,
    place: int,
    room: int,
    most: int,
) -> tuple[bytes, list[SubjectRows]]:
    """Adds messages that came at the same time as the next rows of the last segment, as many as fit."""
    _check_rows(frames, begin, end)
    sizes = array("I", _record_sizes(buffer, frames, begin, end))
    total, count = sizes[0], 1
    while count < len(sizes) and total + sizes[count] <= room:
        total += sizes[count]
        count += 1
    sizes = sizes[:count]
    first = sequence = contents.last + 1
    segment, over, records = contents.segments[-1], [], []
    for subject, _, header, payload in rows(buffer, frames, begin, begin + count):
        records.append(encode_record(sequence, time, subject, header, payload, key))
        entry = contents.subjects.get(subject) or contents.named(subject)
        if not entry.count:
            entry.first = sequence
        entry.count += 1
        entry.last = sequence
        if 0 < most < entry.count and entry not in over:
            over.append(entry)
        segment.subjects.append(entry.number)
        segment.places.append(place)
        place += sizes[sequence - first]
        sequence += 1
    segment.times.extend(array("q", (time,)) * count)
    segment.sizes.extend(sizes)
    segment.live += count
    segment.bytes += total
    if not contents.messages:
        contents.first, contents.first_time = first, time
    contents.messages += count
    contents.bytes += total
    contents.last, contents.last_time = sequence - 1, time
    return b"".join(records), over


def drop_firsts(
    contents: Contents, over: list[SubjectRows], most: int, key: bytes
) -> tuple[list[tuple[int, int]], list[tuple[RowSegment, int]], bytes, bytes]:
    """Takes out the first messages of subjects that have too many."""
    records = []
    gone: list[tuple[int, int]] = []
    touched: list[tuple[RowSegment, int]] = []
    for entry in over:
        while entry.count > most:
            sequence = contents.first_of(entry)
            found = contents.locate(sequence)
            assert found is not None
            records.append(tombstone(sequence, found[0].times[found[1]], key))
            contents.discard(*found)
            gone.append((sequence, entry.number))
            if touched and touched[-1][0] is found[0]:
                touched[-1] = (found[0], touched[-1][1] + 1)
            else:
                touched.append((found[0], 1))
    return gone, touched, b"".join(records), array("Q", [number for number, _ in gone]).tobytes()


def _check_rows(frames: Frames, begin: int, end: int) -> None:
    if frames.shape[1] != WIDTH or not 0 <= begin < end <= len(frames):
        raise ValueError(f"rows {begin} to {end} lie outside")


def _record_sizes(buffer: Buffer, frames: Frames, begin: int, end: int) -> list[int]:
    limit = memoryview(buffer).nbytes
    sizes = []
    for subject, subject_size, _, _, header, start, size, _ in frames[begin:end].tolist():
        if (
            not (0 <= header <= size and 0 <= start <= limit - size)
            or not 0 <= subject <= limit - subject_size
            or subject_size < 0
        ):
            raise ValueError("a message reaches beyond its buffer")
        sizes.append(EMPTY_RECORD_SIZE + subject_size + size + (HEADER_LENGTH_SIZE if header else 0))
        if subject_size > MAX_SUBJECT_SIZE or sizes[-1] > MAX_RECORD_SIZE:
            raise ValueError(f"a record of {sizes[-1]} bytes")
    return sizes
