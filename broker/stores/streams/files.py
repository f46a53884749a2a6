"""Messages in files, as nats-server has them (jetstream-server.md section 20): it opens our directory, and we its.

    <store>/<account>/streams/<stream>/meta.inf, meta.sum    configuration and its hash
                                       msgs/N.blk            messages and tombstones

What is taken out gets a *tombstone* at the end of the last block, except what a limit takes from the head: the next
start would take it out again. A block without messages goes, one with few is rewritten; the tombstones in it whose
messages are still in a file move to the last block. There is never an `index.db`, so that a real server looks at the
blocks themselves.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from broker.stores.interface import StorageError
from broker.stores.streams import kernels
from broker.stores.streams.blocks import Block, Descriptors
from broker.stores.streams.contents import ABSENT, Contents, Filter, Segment
from broker.stores.streams.interface import MOST_BYTES, Stored, Table
from broker.stores.streams.metafiles import KeptConsumers, write_meta
from broker.stores.streams.opening import forget_indexes, open_messages
from stantools.errors import StantoolsError
from stantools.nats.frames import HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE, SUBJECT, SUBJECT_SIZE, Frames, frame_table
from stantools.store.durable import replace_file
from stantools.streamfiles import highway
from stantools.streamfiles.kernels import decode_record, direct_answer, encode_record, find_messages
from stantools.streamfiles.layout import EMPTY_RECORD_SIZE, HEADER_LENGTH_SIZE, Places, record_size
from stantools.streamfiles.meta import full_stream_meta
from stantools.streamfiles.records import erased, tombstone

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer

#: Bytes of a block, and how many of them have to be in use: otherwise it is rewritten.
BLOCK_SIZE: Final = 8 << 20
_IN_USE: Final = 0.3
#: Bytes that may wait to be written.
_MOST_WAITING: Final = 1 << 20
#: How many times as many bytes are read as are wanted, where what is wanted is not all there is.
_SPARSE: Final = 4
#: Bytes of a record with headers besides what the message has.
_HEADED: Final = EMPTY_RECORD_SIZE + HEADER_LENGTH_SIZE
MESSAGES: Final = "msgs"

_Parts = TypeVar("_Parts")


class FileStream(KeptConsumers):
    """A stream in files.

    Args:
        files: Who has files open.
        next_sequence: The first sequence of a new stream; None opens what is there.

    Raises:
        StorageError: It cannot be opened or made; the message says why.
    """

    def __init__(self, directory: Path, name: str, files: Descriptors, next_sequence: int | None = None) -> None:
        self._directory, self._messages, self._name = directory, directory / MESSAGES, name
        self._files = files
        self._blocks: dict[int, Block] = {}
        self.contents = Contents(next_sequence or 1)
        try:
            self._messages.mkdir(mode=0o700, parents=True, exist_ok=True)
            if next_sequence is None:
                forgotten = open_messages(self._messages, name, files, self.contents, self._blocks)
        except StantoolsError:
            raise
        except OSError as error:
            raise StorageError(f"{directory} cannot be opened: {error.strerror}") from error
        if next_sequence is not None and next_sequence > 1:
            self.purge_all(next_sequence)
        elif next_sequence is None:
            # What only an index knows to be gone gets tombstones, as there will be no index.
            for sequence in forgotten:
                self.remove(sequence)
            self.flush()
            forget_indexes(self._messages)
            for block in list(self._blocks.values()):
                self._tidy_block(block)

    #: The bytes that a message counts for are those of its record.
    size_of = staticmethod(record_size)

    def configure(self, config: Mapping[str, Any], created: int) -> None:
        """Writes the configuration.

        Raises:
            StorageError: It cannot be written.
        """
        data = full_stream_meta(config, created)
        write_meta(self._directory, data, highway.stream_key(self._name))

    # Records

    def append(self, time: int, subject: bytes, header: bytes, payload: bytes) -> int:
        """Adds a message. Returns its sequence."""
        contents = self.contents
        sequence, segments = contents.last + 1, contents.segments
        size = record_size(subject, header, payload)
        block = self._last(size)
        waiting = block.waiting
        place = block.size + len(waiting)
        if not segments or segments[-1].block != block.number:
            contents.begin(sequence, block.number)
        waiting += encode_record(sequence, time, subject, header, payload, block.key)
        contents.add(sequence, time, subject, size, place)
        return sequence

    def read(self, sequence: int) -> Stored | None:
        """Returns a message, if it is there.

        Raises:
            StorageError: Its record cannot be read, or is damaged.
        """
        found = self.contents.locate(sequence)
        return found and Stored(sequence, found[0].times[found[1]], *self._decoded(sequence, found, decode_record))

    def direct(self, sequence: int, stream: bytes) -> tuple[bytes, int] | None:
        """Returns what answers a direct get, if the message is there: header block and payload, and the block's size.

        Raises:
            StorageError: Its record cannot be read, or is damaged.
        """
        found = self.contents.locate(sequence)
        return None if found is None else self._decoded(sequence, found, direct_answer, stream)

    def _decoded(
        self, sequence: int, found: tuple[Segment, int], decode: Callable[..., _Parts | None], *more: bytes
    ) -> _Parts:
        segment, row = found
        block = self._blocks[segment.block]
        parts = decode(block.read(segment.places[row], segment.sizes[row]), block.key, *more)
        if parts is None:
            raise StorageError(f"{block.path} has no good record for message {sequence} at byte {segment.places[row]}")
        return parts

    def append_rows(
        self, time: int, buffer: Buffer, frames: Frames, begin: int, end: int, most: int = 0
    ) -> list[tuple[int, int]]:
        """Adds messages that have come at the same time: rows of a table. Returns what goes for them."""
        contents = self.contents
        segments = contents.segments
        gone: list[tuple[int, int]] = []
        while begin < end:
            _, subject_size, _, _, header, _, size, _ = frames[begin].tolist()
            block = self._last(subject_size + size + (_HEADED if header else EMPTY_RECORD_SIZE))
            sequence, place = contents.last + 1, block.end
            if not segments or segments[-1].block != block.number or segments[-1].end != sequence:
                contents.begin(sequence, block.number)
            records, over = kernels.enter_rows(
                contents, buffer, frames, begin, end, time, block.key, place, BLOCK_SIZE - place, most
            )
            block.waiting += records
            begin += contents.last + 1 - sequence
            if over:
                went, touched = kernels.drop_firsts(contents, over, most)
                gone += went
                for segment, count in touched:
                    if _is_worth_a_look(segment, count):
                        self._look_at(segment)
        return gone

    def table(self, sequences: Sequence[int], room: int) -> Table | None:
        """Returns messages, from the first one on those that lie near each other in a file and are good."""
        found = self.contents.locate(sequences[0])
        if found is None:
            return None
        segment = found[0]
        block = self._blocks[segment.block]
        rows = np.array(sequences, np.int64) - segment.first
        rows = rows[: int(np.searchsorted(rows, len(segment.sizes)))]
        sizes = np.frombuffer(segment.sizes, np.uint32)[rows]
        places = np.frombuffer(segment.places, np.uint32)[rows].astype(np.int64)
        first = int(places[0])
        ends = places + sizes - first
        fit = (sizes > 0) & (ends <= MOST_BYTES) & (ends <= block.size - first)
        fit &= ends <= _SPARSE * np.cumsum(sizes, dtype=np.int64)
        count = len(rows) if fit.all() else int(fit.argmin())
        if not count:
            return None
        end = int(ends[count - 1])
        try:
            buffer = block.read_flushed(first, end, room * count)
        except StorageError:
            return None
        frames = frame_table(count)
        starts = (places[:count] - first).astype(np.uint32)
        good = find_messages(buffer, starts, sizes[:count], block.key, _places(frames))
        times = np.frombuffer(segment.times, np.int64)[rows[:good]]
        return Table(buffer, end, frames[:good], times) if good else None

    def _last(self, size: int) -> Block:
        """Returns the block that the next record, of some size, goes to."""
        number = next(reversed(self._blocks), 0)
        block = self._blocks.get(number)
        end = 0 if block is None else block.size + len(block.waiting)
        if block is None or block.damaged or (end and end + size > BLOCK_SIZE):
            if block is not None:
                block.flush()
            block = self._blocks[number + 1] = Block(self._messages, self._name, number + 1, self._files)
            if number in self._blocks:
                self._tidy_block(self._blocks[number])
        elif len(block.waiting) > _MOST_WAITING:
            block.flush()
        return block

    def _bury(self, sequence: int, time: int) -> None:
        block = self._last(EMPTY_RECORD_SIZE)
        block.waiting += tombstone(sequence, time, block.key)
        block.graves.append(sequence)

    def _bury_rows(self, segment: Segment, rows: list[int]) -> None:
        for row in rows:
            self._bury(segment.first + row, segment.times[row])

    # Removal

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        """Takes out a message for good. Returns whether it was there."""
        found = self.contents.locate(sequence)
        if found is None:
            return False
        segment, row = found
        if erase:
            block, size = self._blocks[segment.block], segment.sizes[row]
            block.overwrite(segment.places[row], erased(sequence, size, secrets.token_bytes(size), block.key))
        time = segment.times[row]
        self.contents.discard(segment, row)
        self._bury(sequence, time)
        if _is_worth_a_look(segment):
            self._look_at(segment)
        return True

    def drop(self, sequence: int) -> None:
        """Takes out a message that is over a limit."""
        contents = self.contents
        found = contents.locate(sequence)
        if found is not None:
            segment, row = found
            contents.discard(segment, row)
            if _is_worth_a_look(segment):
                self._look_at(segment)

    def drop_below(self, sequence: int) -> None:
        """Takes out the messages below a sequence that are over a limit."""
        touched = [segment for segment in self.contents.segments if segment.first < sequence]
        self.contents.drop_below(sequence)
        for number in {segment.block for segment in touched if not segment.live}:
            self._tidy_block(self._blocks[number])

    def purge_below(self, sequence: int) -> None:
        """Takes out the messages below a sequence for good."""
        gone = list(self.contents.rows(None, sequence))
        self.drop_below(sequence)
        for segment, rows in gone:
            if segment.block in self._blocks:
                self._bury_rows(segment, rows.tolist())

    def purge_matching(self, wanted: Filter, below: int) -> None:
        """Takes out the messages that match and are below a sequence, for good."""
        for segment, rows in self.contents.rows(wanted, below):
            if not len(rows):
                continue
            self.contents.drop_all(segment, rows)
            if _is_worth_a_look(segment, len(rows)):
                self._look_at(segment)
            if segment.block in self._blocks:
                self._bury_rows(segment, rows.tolist())

    def purge_all(self, next_sequence: int) -> None:
        """Takes out everything; the next message gets this sequence."""
        last = next(reversed(self._blocks), 0)
        time = self.contents.last_time
        block = Block(self._messages, self._name, last + 1, self._files)
        if next_sequence > 1:
            block.waiting += tombstone(next_sequence - 1, time, block.key)
            block.graves.append(next_sequence - 1)
        block.flush()
        for old in list(self._blocks.values()):
            old.remove()
        self._blocks.clear()
        self._blocks[block.number] = block
        self.contents.restart(next_sequence)

    def settle(self) -> None:
        """Writes tombstones for what is gone by limits and still in a file."""
        for segment in list(self.contents.segments):
            dead = (row for row, size in enumerate(segment.sizes) if not size and segment.places[row] != ABSENT)
            self._bury_rows(segment, list(dead))

    # Blocks

    def _segments(self, number: int) -> list[Segment]:
        return [segment for segment in self.contents.segments if segment.block == number]

    def _look_at(self, segment: Segment) -> None:
        """Tidies up the block of a segment."""
        block = self._blocks.get(segment.block)
        # It may be gone: a tombstone that needed a new block had the one before tidied up.
        if block is not None:
            self._tidy_block(block)

    def _tidy_block(self, block: Block) -> None:
        """Takes a block away that has no messages, writes one anew that has few; never the last."""
        if block.number not in self._blocks or block.number == next(reversed(self._blocks)):
            return
        segments = self._segments(block.number)
        used = sum(segment.bytes for segment in segments)
        if used > _IN_USE * block.end or block.damaged:
            return
        self._move_graves(block)
        last = self.contents.last
        if last in block.graves or any(segment.end == last + 1 for segment in segments):
            # What says how far the stream has come must not go.
            self._bury(last, self.contents.last_time)
        # The tombstones have to be there before what they come from goes.
        block.flush()
        self.flush()
        if used:
            self._rewrite(block, segments)
            return
        for segment in segments:
            self.contents.remove_segment(segment)
        del self._blocks[block.number]
        block.remove()

    def _move_graves(self, block: Block) -> None:
        """Copies the tombstones whose messages are still in another block to the last one."""
        for sequence in block.graves:
            found = self._row(sequence)
            if found is not None and found[0].block != block.number:
                segment, row = found
                if not segment.sizes[row] and segment.places[row] != ABSENT:
                    self._bury(sequence, segment.times[row])

    def _row(self, sequence: int) -> tuple[Segment, int] | None:
        for segment in reversed(self.contents.segments):
            if segment.first <= sequence:
                row = sequence - segment.first
                return (segment, row) if row < len(segment.sizes) else None
        return None

    def _rewrite(self, block: Block, segments: list[Segment]) -> None:
        """Writes a block anew with the messages that are left."""
        data = bytearray()
        for segment in segments:
            for row, size in enumerate(segment.sizes):
                if not size:
                    segment.places[row] = ABSENT
                    continue
                record = block.read(segment.places[row], size)
                segment.places[row] = len(data)
                data += record
        block.close()
        try:
            replace_file(block.path, bytes(data), mode=0o600)
        except StantoolsError as error:
            raise StorageError(error.message) from error
        block.size, block.graves = len(data), array("Q")

    # Life

    def flush(self) -> None:
        """Writes what waits to be written.

        Raises:
            StorageError: It cannot be written.
        """
        if self._blocks:
            block = self._blocks[next(reversed(self._blocks))]
            if block.waiting:
                block.flush()

    def unsynced(self) -> list[Path]:
        """Returns the files that were written since this was called last."""
        written = [block for block in self._blocks.values() if block.unsynced]
        for block in written:
            block.unsynced = False
        return [block.path for block in written]

    def close(self) -> None:
        """Writes what waits, and syncs."""
        self.flush()
        for block in self._blocks.values():
            block.sync()
        self.abandon()

    def abandon(self) -> None:
        """Closes the files without writing anything."""
        for block in self._blocks.values():
            block.close()


def _is_worth_a_look(segment: Segment, lost: int = 1) -> bool:
    """Returns whether a segment that has lost messages has none any more, or one in sixteen of all has gone."""
    live, step = segment.live, max(16, len(segment.sizes) >> 4)
    return -live % step < lost


def _places(frames: Frames) -> Places:
    """The columns of a table that say where messages are."""
    return Places(*(frames[:, column] for column in (SUBJECT, SUBJECT_SIZE, HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE)))
