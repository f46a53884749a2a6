"""Messages in files, in the layout of nats-server (jetstream-server.md section 20): each opens the other's directories.

    <store>/<account>/streams/<stream>/meta.inf, meta.sum    configuration and its hash
                                       msgs/N.blk            messages and tombstones

The files alone say which messages exist; limits are not applied when they are read. A removed message, whatever the
reason, gets a *tombstone* at the end of the last block. Only a block without remaining messages needs none for its
own: the block is removed. A block with little content in use is rewritten with its messages, and with the tombstones
of messages that are still in another file.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from broker.stores.interface import StorageError
from broker.stores.streams import kernels
from broker.stores.streams.blocks import Descriptors, MessageBlock
from broker.stores.streams.contents import ABSENT, Contents, RowSegment
from broker.stores.streams.interface import MOST_BYTES, MessageTableColumns, Stored
from broker.stores.streams.metafiles import CONSUMERS, META, META_SUM, KeptConsumers, place_directory, write_meta
from broker.stores.streams.recovery import StreamRecovery
from broker.stores.streams.subject_filter import SubjectFilter, SubjectRows
from broker.stores.streams.summary import index_of
from stantools.errors import StantoolsError
from stantools.nats.frames import HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE, SUBJECT, SUBJECT_SIZE, Frames, frame_table
from stantools.store.durable import fsync_directory, replace_file
from stantools.streamfiles import highwayhash
from stantools.streamfiles.kernels import (
    decode_record,
    direct_answer,
    encode_record,
    encode_tombstones,
    find_messages,
)
from stantools.streamfiles.layout import (
    EMPTY_RECORD_SIZE,
    HEADER_LENGTH_SIZE,
    INDEX,
    MESSAGES,
    TOMBSTONE,
    MessagePlaces,
    record_size,
)
from stantools.streamfiles.meta import full_stream_meta, meta_sum
from stantools.streamfiles.records import erased

if TYPE_CHECKING:
    from stantools.format.envelope import Buffer
    from stantools.streamfiles.meta import CopiedState

#: bytes of a block, and the fraction in use below which it is rewritten
BLOCK_SIZE: Final = 8 << 20
_IN_USE: Final = 0.3
#: bytes to collect before a write at most
_MOST_WAITING: Final = 1 << 20
#: factor by which a read may exceed the wanted bytes if it spans other records
_SPARSE: Final = 4
#: tombstones of an emptied block above which a sync is cheaper
_MANY: Final = 256
#: bytes of a record with headers besides the content of the message
_HEADED: Final = EMPTY_RECORD_SIZE + HEADER_LENGTH_SIZE

_Parts = TypeVar("_Parts")


class FileStream(KeptConsumers):
    """A stream in files.

    Args:
        directory: The directory of the stream; `configure` creates that of a new one.
        files: The open files of all streams.
        next_sequence: The first sequence of a new stream; None opens an existing one.

    Raises:
        StorageError: The stream cannot be opened.
    """

    def __init__(self, directory: Path, name: str, files: Descriptors, next_sequence: int | None = None) -> None:
        self._directory, self._messages, self._name = directory, directory / MESSAGES, name
        self._files = files
        self._blocks: dict[int, MessageBlock] = {}
        self._sparse_blocks: set[int] = set()  # blocks that may have little in use
        self._lifetimes = True  # whether messages may have a lifetime
        self._abandoned = False
        self._syncing: list[tuple[MessageBlock, int]] = []  # blocks of the sync in progress, with their last sequences
        self._deferred: dict[int, int] = {}  # emptied blocks that wait for the sync of a later one, likewise
        self._renamed = False  # whether files were created or removed since the last sync of the directory
        self.contents = Contents(next_sequence or 1)
        if next_sequence is None:
            self._open()
        elif next_sequence > 1:
            self._add_tombstone(next_sequence - 1, 0)

    def _open(self) -> None:
        try:
            recovery = StreamRecovery(self._directory, self._name, self._files, self.contents, self._blocks)
            recovery.read()
            for number in recovery.repeated:
                self._rewrite(self._blocks[number])
            self._add_tombstones_of_rows(recovery.gone())
            last, time = recovery.last_known()
            if last > self.contents.last:
                self.contents.skip(last, max(time, self.contents.last_time))
                self._begin_block()
                self._add_tombstone(last, self.contents.last_time)
            self._sparse_blocks.update(self._blocks)
            # The previous process may not have synced its writes, and the names of new files.
            self._renamed = bool(self._blocks)
            for block in self._blocks.values():
                block.unsynced = True
            self.flush()
            if recovery.has_index:
                self.sync()
                recovery.settle()
        except StantoolsError:
            raise
        except OSError as error:
            raise StorageError(f"{self._directory} cannot be opened: {error.strerror}") from error

    def share(self, files: Descriptors) -> None:
        """Replaces the open files by those shared with other streams."""
        self.abandon()
        self._files = files
        for block in self._blocks.values():
            block.share(files)

    #: A message counts with the bytes of its record.
    size_of = staticmethod(record_size)

    def configure(self, config: Mapping[str, Any], created: int) -> None:
        """Writes the configuration, and creates the directory of a new stream."""
        self._lifetimes = bool(config.get("allow_msg_ttl"))
        data, key = full_stream_meta(config, created), highwayhash.stream_key(self._name)
        if self._messages.exists():
            write_meta(self._directory, data, key)
            return
        files = {META: data, META_SUM: meta_sum(data, key)}
        for block in self._blocks.values():
            files[f"{MESSAGES}/{block.path.name}"] = block.take()
        place_directory(self._directory, files, (MESSAGES, CONSUMERS))

    # Records

    def append(self, time: int, subject: bytes, header: bytes, payload: bytes) -> int:
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
        found = self.contents.locate(sequence)
        return found and Stored(sequence, found[0].times[found[1]], *self._decoded(sequence, found, decode_record))

    def direct(self, sequence: int, stream: bytes) -> tuple[bytes, int] | None:
        found = self.contents.locate(sequence)
        return None if found is None else self._decoded(sequence, found, direct_answer, stream)

    def _decoded(
        self, sequence: int, found: tuple[RowSegment, int], decode: Callable[..., _Parts | None], *more: bytes
    ) -> _Parts:
        segment, row = found
        block = self._blocks[segment.block]
        parts = decode(block.read(segment.places[row], segment.sizes[row]), block.key, *more)
        if parts is None:
            raise StorageError(f"{block.path} has no good record for message {sequence} at byte {segment.places[row]}")
        return parts

    def append_rows(
        self, time: int, buffer: Buffer, frames: Frames, begin: int, end: int, most: int = 0
    ) -> list[SubjectRows]:
        """Adds rows `begin` to `end` of a table. Returns their subjects that now have more than `most` messages."""
        contents = self.contents
        segments = contents.segments
        found: list[SubjectRows] = []
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
            found = list(dict.fromkeys(found + over)) if found else over
        return found

    def table(self, sequences: Sequence[int], room: int) -> MessageTableColumns | None:
        """Returns messages that lie near each other in one file and are intact, from the first one on."""
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
        columns = (frames[:, column] for column in (SUBJECT, SUBJECT_SIZE, HEADER_SIZE, PAYLOAD, PAYLOAD_SIZE))
        good = find_messages(buffer, starts, sizes[:count], block.key, MessagePlaces(*columns))
        times = np.frombuffer(segment.times, np.int64)[rows[:good]]
        return MessageTableColumns(buffer, end, frames[:good], times) if good else None

    def _last(self, size: int) -> MessageBlock:
        """Returns the block for the next record of `size` bytes."""
        block = self._blocks[next(reversed(self._blocks))] if self._blocks else None
        if block is None:
            return self._begin_block()
        waiting = len(block.waiting)
        end = block.size + waiting
        if end and end + size > BLOCK_SIZE:
            return self._begin_block()
        if waiting > _MOST_WAITING:
            block.flush()
        return block

    def _begin_block(self) -> MessageBlock:
        number = next(reversed(self._blocks), 0)
        if number:
            full = self._blocks[number]
            full.flush()
            full.sync_soon(self._last_of(full))
            self._sparse_blocks.add(number)
        block = self._blocks[number + 1] = MessageBlock(self._messages, self._name, number + 1, self._files)
        self._renamed = True
        return block

    # Removal

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        found = self.contents.locate(sequence)
        if found is None:
            return False
        segment, row = found
        if erase:
            block, size = self._blocks[segment.block], segment.sizes[row]
            block.overwrite(segment.places[row], erased(sequence, size, secrets.token_bytes(size), block.key))
        time = segment.times[row]
        self.contents.discard(segment, row)
        self._add_tombstone(sequence, time)
        if _may_be_sparse(segment):
            self._sparse_blocks.add(segment.block)
        return True

    def drop_firsts(self, subjects: list[SubjectRows], most: int) -> list[tuple[int, int]]:
        block = self._last(EMPTY_RECORD_SIZE)
        gone, touched, tombstones, sequences = kernels.drop_firsts(self.contents, subjects, most, block.key)
        block.waiting += tombstones
        block.tombstone_sequences.frombytes(sequences)
        for segment, count in touched:
            if _may_be_sparse(segment, count):
                self._sparse_blocks.add(segment.block)
        return gone

    def purge_below(self, sequence: int) -> None:
        gone = list(self.contents.rows(None, sequence))
        self.contents.drop_below(sequence)
        self._add_tombstones_of_rows(gone)

    def purge_matching(self, wanted: SubjectFilter, below: int) -> None:
        gone = list(self.contents.rows(wanted, below))
        self.contents.drop_rows(gone)
        self._add_tombstones_of_rows(gone)

    def purge_all(self, next_sequence: int) -> None:
        old, time = list(self._blocks.values()), self.contents.last_time
        for block in old:
            block.waiting.clear()
        if next_sequence > 1:
            last = self._begin_block()
            self._add_tombstone(next_sequence - 1, time)
            last.flush()
            self._blocks = {last.number: last}
            # The old blocks must not take the last used sequence with them.
            self.sync()
            for block in old:
                block.remove()
            self._renamed = True
        self._sparse_blocks.clear()
        self.contents.restart(next_sequence)

    # Tombstones

    def _add_tombstone(self, sequence: int, time: int) -> None:
        block = self._last(EMPTY_RECORD_SIZE)
        block.waiting += encode_record(sequence | TOMBSTONE, time, b"", b"", b"", block.key)
        block.tombstone_sequences.append(sequence)

    def _add_tombstones_of_rows(self, gone: Iterable[tuple[RowSegment, NDArray[np.int64]]]) -> None:
        """Writes tombstones for removed messages, except for emptied blocks with many, which will be removed."""
        gone = [(segment, rows) for segment, rows in gone if len(rows)]
        self._sparse_blocks.update(segment.block for segment, _ in gone)
        live = {segment.block for segment in self.contents.segments if segment.live}
        emptied = [segment.block for segment, rows in gone if segment.block not in live and len(rows) > _MANY]
        if emptied:
            newest = max(emptied)
            self._write()
            last = max(
                self._last_of(self._blocks[newest]), *(each.end - 1 for each, _ in gone if each.block in emptied)
            )
            if all(self._last_of(block) < last for block in self._after(newest)):
                # Without a later sequence in another file the last one is among those of the emptied blocks.
                if newest == next(reversed(self._blocks)):
                    self._begin_block()
                self._add_tombstone(self.contents.last, self.contents.last_time)
                self._write()
            self._secure(newest, last)
        for segment, rows in gone:
            if segment.block not in emptied:
                times = np.frombuffer(segment.times, np.int64)[rows]
                self._add_tombstones(np.array(rows + segment.first, np.uint64), times)

    def _add_tombstones(self, sequences: NDArray[np.uint64], times: NDArray[np.int64]) -> None:
        begin = 0
        while begin < len(sequences):
            block = self._last(EMPTY_RECORD_SIZE)
            end = begin + max(1, (BLOCK_SIZE - block.end) // EMPTY_RECORD_SIZE)
            part = sequences[begin:end]
            block.waiting += encode_tombstones(part, times[begin:end], block.key)
            block.tombstone_sequences.frombytes(part.tobytes())
            begin = end

    # Blocks

    def _compact(self, number: int) -> None:
        """Removes a block without content in use, or rewrites one with little; never the last block."""
        block = self._blocks.get(number)
        if block is None or number == next(reversed(self._blocks)):
            return
        segments = self.contents.segments_of_block(number)
        used, enough = sum(segment.bytes for segment in segments), _IN_USE * block.end
        if used > enough:
            return
        last = self._last_of(block)
        sequences, times = needed_tombstones(self.contents, block)
        if used + len(sequences) * EMPTY_RECORD_SIZE > enough > 0:
            if not used and segments:
                # Removed messages may lack tombstones if their whole block was emptied.
                self._rewrite(block)
            return
        if used:
            self._rewrite(block)
            return
        if len(sequences):
            # They must be durable elsewhere before the block is removed.
            self._add_tombstones(sequences, times)
            self._write()
            self._secure(number, last, anew=True)
        elif block.end and not self._is_secure(number, last):
            self._deferred[number] = last
            return
        for segment in segments:
            self.contents.remove_segment(segment)
        del self._blocks[number]
        self._renamed = True
        block.remove()

    def _secure(self, number: int, last: int, *, anew: bool = False) -> None:
        """Syncs the later blocks before an earlier one is removed, unless they are known to keep its last sequence.

        Otherwise sequences could be given again after a loss of power.
        """
        if anew or not self._is_secure(number, last):
            self._sync_blocks(self._after(number))
            self._sync_names()

    def _is_secure(self, number: int, last: int) -> bool:
        """Returns whether a block after this one has a sequence in its synced part that is not below `last`."""
        return any(block.durable >= last for block in self._after(number))

    def _after(self, number: int) -> Iterator[MessageBlock]:
        """Returns the blocks after this one, the newest first."""
        return takewhile(lambda block: block.number > number, reversed(self._blocks.values()))

    def _last_of(self, block: MessageBlock) -> int:
        """Returns the highest sequence in the file of a block; while records wait, only that in its synced part."""
        if block.waiting:
            return block.durable
        segments = reversed(self.contents.segments_of_block(block.number))
        last = next((each.first + row for each in segments if (row := each.last_placed()) >= 0), 0)
        tombstone_sequences = np.frombuffer(block.tombstone_sequences, np.uint64)
        return max(last, int(tombstone_sequences.max(initial=0)))

    def _rewrite(self, block: MessageBlock) -> None:
        """Rewrites a block with its remaining messages and the required tombstones."""
        last = self._last_of(block)
        sequences, times = needed_tombstones(self.contents, block)
        segments = self.contents.segments_of_block(block.number)
        data = bytearray()
        for segment in segments:
            for row, size in enumerate(segment.sizes):
                if not size:
                    segment.places[row] = ABSENT
                    continue
                record = block.read(segment.places[row], size)
                segment.places[row] = len(data)
                data += record
            if not segment.live:
                self.contents.remove_segment(segment)
        data += encode_tombstones(sequences, times, block.key)
        self._secure(block.number, last)
        block.close()
        try:
            replace_file(block.path, bytes(data), mode=0o600)
        except StantoolsError as error:
            raise StorageError(error.message) from error
        # A sync of the old file that is still in progress says nothing about the new one.
        new = self._blocks[block.number] = MessageBlock(self._messages, self._name, block.number, self._files)
        new.size, new.tombstone_sequences = len(data), array("Q", sequences.tolist())
        new.durable = self._last_of(new)

    # Flush and end

    def flush(self) -> None:
        """Writes collected records, then removes and rewrites blocks."""
        self._write()
        if self._deferred and self._is_secure(*max(self._deferred.items())):
            self._sparse_blocks.update(self._deferred)
            self._deferred.clear()
        while self._sparse_blocks:
            number = min(self._sparse_blocks)
            self._sparse_blocks.discard(number)
            self._compact(number)

    def _write(self) -> None:
        if self._blocks:
            block = self._blocks[next(reversed(self._blocks))]
            if block.waiting:
                block.flush()

    def keep_copied(self, state: CopiedState) -> None:
        """Writes the positions of copies after the messages that they describe."""
        self._write()
        super().keep_copied(state)

    def unsynced(self) -> list[Path]:
        """Returns the paths written since the last call, in the order to sync them.

        The caller has synced those of the last call.
        """
        written = [block for block in self._blocks.values() if block.unsynced]
        for block, last in self._syncing:
            block.durable = last
        self._syncing = [(block, self._last_of(block)) for block in written]
        for block in written:
            block.unsynced = False
        names, self._renamed = self._renamed, False
        return [block.path for block in written] + [self._messages] * names + super().unsynced()

    def sync(self) -> None:
        """Makes the files durable."""
        self._sync_blocks(self._blocks.values())
        if self._renamed:
            self._sync_names()

    def _sync_blocks(self, blocks: Iterable[MessageBlock]) -> None:
        for block in blocks:
            if block.unsynced or block.durable < 0:
                block.sync(self._last_of(block))

    def _sync_names(self) -> None:
        try:
            fsync_directory(self._messages)
        except OSError as error:
            raise StorageError(f"{self._messages} cannot be synced: {error.strerror}") from error
        self._renamed = False

    def close(self) -> None:
        """Writes collected records and an index, and syncs."""
        if self._abandoned:
            return
        self.flush()
        self.sync()
        key = highwayhash.stream_key(self._name)
        index = index_of(self.contents, self._blocks, key, lifetimes=self._lifetimes)
        self.abandon()
        try:
            self._sync_copied()
            if index is not None:
                replace_file(self._messages / INDEX, index, mode=0o600)
        except StantoolsError as error:
            raise StorageError(error.message) from error
        except OSError as error:
            raise StorageError(f"{self._directory} cannot be synced: {error.strerror}") from error

    def abandon(self) -> None:
        self._abandoned = True
        for block in self._blocks.values():
            block.close()


def _may_be_sparse(segment: RowSegment, lost: int = 1) -> bool:
    """Returns whether a segment has lost its last message, or another sixteenth of its rows."""
    live, step = segment.live, max(16, len(segment.sizes) >> 4)
    return -live % step < lost


def needed_tombstones(contents: Contents, block: MessageBlock) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Returns sequences and times of the tombstones that must remain when a block is removed.

    These are tombstones of messages that are still in another file, and the one of the last used sequence.
    """
    tombstone_sequences = np.unique(np.frombuffer(block.tombstone_sequences, np.uint64))
    found: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
    own = contents.last in tombstone_sequences[-1:].tolist()
    own = own or any(each.end == contents.last + 1 for each in contents.segments_of_block(block.number))
    bounds = tombstone_sequences[[0, -1]].tolist() if len(tombstone_sequences) else (1, 0)
    for segment in contents.segments_within(*bounds):
        begin, end = np.searchsorted(tombstone_sequences, np.array([segment.first, segment.end], np.uint64)).tolist()
        if begin == end or segment.block == block.number:
            continue
        rows = tombstone_sequences[begin:end].astype(np.int64) - segment.first
        dead = np.frombuffer(segment.sizes, np.uint32)[rows] == 0
        dead &= np.frombuffer(segment.places, np.uint32)[rows] != ABSENT
        found.append((tombstone_sequences[begin:end][dead], np.frombuffer(segment.times, np.int64)[rows[dead]]))
    sequences = [each for each, _ in found] or [np.zeros(0, np.uint64)]
    times = [each for _, each in found] or [np.zeros(0, np.int64)]
    if own and contents.locate(contents.last) is None and contents.last not in sequences[-1][-1:].tolist():
        sequences.append(np.array([contents.last], np.uint64))
        times.append(np.array([contents.last_time], np.int64))
    return np.concatenate(sequences), np.concatenate(times)
