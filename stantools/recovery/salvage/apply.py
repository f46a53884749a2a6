"""Writing a salvaged store: a new directory, whole or not there at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stantools.errors import StoreUnwritableError
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import INDEX_RECORD_SIZE, RECORD_HEADER_SIZE
from stantools.progress import Progress
from stantools.recovery.place import check_outside, check_room
from stantools.recovery.salvage.hashing import Hasher
from stantools.recovery.salvage.manifest import MANIFEST_FILE, Moved, write_manifest
from stantools.recovery.salvage.model import ChannelPlan, Copy, Rewrite, SalvagePlan
from stantools.store.atomic import absolute, new_directory
from stantools.store.limits import ONE_SLICE
from stantools.store.mapping import Buffer, mapped
from stantools.store.ranges import Ranges
from stantools.store.reading import BATCH_ROWS, scan_slice
from stantools.store.resync import Damage
from stantools.store.slicewriter import SliceWriter
from stantools.store.storewriter import StoreWriter
from stantools.work import Threads

#: Room that is asked for beyond the planned bytes: logs, the manifest.
_SPARE = 1.05
#: Bytes of a filler message, generously.
_FILLER = 128


@dataclass(frozen=True)
class SalvageResult:
    """What was written.

    Attributes:
        path: The new store.
        manifest: The account of it, a file in the new store that servers ignore.
        messages: Messages in it, fillers not counted.
        filled: Empty messages in it.
        bytes: Bytes of its data files.
    """

    path: Path
    manifest: Path
    messages: int
    filled: int
    bytes: int


def apply_salvage(plan: SalvagePlan, out: Path, *, progress: Progress | None = None) -> SalvageResult:
    """Writes the new store.

    It is built beside its place and renamed at the end, all of it durable by then. A killed run leaves nothing under
    the name; running again clears what it left.

    Args:
        plan: What to write.
        out: The new directory; must not exist, or be empty.
        progress: Told the number of data bytes as they are written.

    Raises:
        RefusedError: There is not enough room, or `out` lies inside the old store.
        StoreUnwritableError: It cannot be written.
        StoreUnreadableError: The old store has changed since it was planned.
    """
    check_place(plan, out)
    with new_directory(out, untouched=f"{plan.source} is as it was", like=plan.source) as content:
        write_root(plan, content)
        moved: list[Moved] = []
        options = plan.options
        with Hasher(content, options.workers) as hasher:
            with _stoppable(progress) as advance:
                write = partial(
                    write_channel, Channels(content, plan.source, plan.crc, options.fill_gaps), hasher=hasher
                )
                for part in Threads(options.workers).in_order(partial(write, progress=advance), plan.channels):
                    moved += part
            write_manifest(content, plan, moved, hasher.all())
    return result_of(plan, out)


def check_place(plan: SalvagePlan, out: Path, *, besides: int = 0) -> int:
    """Checks that a new store can be written to a place.

    Args:
        plan: What is to be written.
        out: Where to.
        besides: Bytes that will be written to the same file system besides.

    Returns:
        Bytes that the new store needs, about.

    Raises:
        RefusedError: There is not enough room, or `out` lies inside the old store.
        StoreUnwritableError: There is no directory to write to.
    """
    check_outside(plan.source, out)
    need = room_needed(plan)
    check_room(out, need + besides)
    return need


def room_needed(plan: SalvagePlan) -> int:
    """Returns about how many bytes a new store needs."""
    filled = sum(channel.filled.count() for channel in plan.channels)
    indexed = INDEX_RECORD_SIZE * (plan.messages + filled)
    return int((plan.bytes + indexed + _FILLER * filled) * _SPARE)


def write_root(plan: SalvagePlan, content: Path) -> None:
    """Writes the files in the root of a new store.

    Raises:
        StoreUnwritableError: They cannot be written.
    """
    store = StoreWriter(content, plan.crc)
    store.write_server(plan.server)
    store.write_clients(plan.clients)


def result_of(plan: SalvagePlan, out: Path) -> SalvageResult:
    """Returns what was written, of a new store that is complete."""
    out = out if out.is_dir() else absolute(out)  # missing/../NEW names nothing, and was written all the same
    return SalvageResult(
        out,
        out / MANIFEST_FILE,
        plan.messages,
        sum(channel.filled.count() for channel in plan.channels),
        sum(path.stat().st_size for path in out.glob("*/msgs.*.dat")),
    )


class _StoppedError(Exception):
    """Raised in the threads when the work is given up."""


@contextmanager
def _stoppable(progress: Progress | None) -> Iterator[Progress]:
    """Gives a progress function that ends the threads that call it once the block is left by an exception."""
    stop = threading.Event()

    def advance(count: int) -> None:
        if stop.is_set():
            raise _StoppedError
        if progress:
            progress(count)

    try:
        yield advance
    except BaseException:
        stop.set()
        raise


@dataclass(frozen=True)
class Channels:
    """Where channels are written, and from where.

    Attributes:
        directory: The root of the new store, or a directory from which the channels are moved there.
        source: The old store.
        crc: The CRC of both.
        fill_gaps: Put an empty message in the place of every missing one.
    """

    directory: Path
    source: Path
    crc: Crc
    fill_gaps: bool = False


def write_channel(channels: Channels, channel: ChannelPlan, *, hasher: Hasher, progress: Progress) -> list[Moved]:
    """Writes one channel of a new store: its subscriptions and its messages.

    The same plan makes the same files, wherever and whenever.

    Args:
        channels: Where to, and from where.
        channel: What of it.
        hasher: Told the files as they are whole.
        progress: Told the number of data bytes as they are written.

    Returns:
        Where the messages went.

    Raises:
        StoreUnwritableError: It cannot be written.
        StoreUnreadableError: The old store has changed since it was planned.
    """
    store = StoreWriter(channels.directory, channels.crc)
    store.write_sub_records(channel.name, channel.subscriptions.encoded(channels.crc))
    writer = store.slices(channel.name, ONE_SLICE, fill_gaps=channels.fill_gaps)
    moved: list[Moved] = []
    with writer:
        copier = _Copier(channels, channel, writer, progress)
        for number, step in enumerate(channel.steps):
            moved.append(copier.write(step))
            if copier.slice_is_done(number):
                # Where a slice of the old store ends, one of the new store ends too.
                writer.close()
                done = writer.finished[-1].number
                hasher.add(writer.directory / f"msgs.{done}.dat")
                hasher.add(writer.directory / f"msgs.{done}.idx")
    return moved


class _Copier:
    """Carries out the steps of one channel."""

    def __init__(self, channels: Channels, channel: ChannelPlan, writer: SliceWriter, progress: Progress) -> None:
        self._channels = channels
        self._channel = channel
        self._writer = writer
        self._progress = progress
        rows = max((step.run.count for step in channel.steps if isinstance(step, Copy)), default=1)
        self._columns = MessageColumns(min(rows, BATCH_ROWS))
        self._resume: dict[int, int] = {}
        self._last_step: dict[Path, int] = {}
        self._sources = [self._source(step) for step in channel.steps]
        for number, path in enumerate(self._sources):
            self._last_step[path] = number

    @staticmethod
    def _source(step: Copy | Rewrite) -> Path:
        if isinstance(step, Rewrite):
            return step.path
        assert step.run.slice.data is not None
        return step.run.slice.data

    def slice_is_done(self, number: int) -> bool:
        """Tells whether no later step takes anything from the slice of this step."""
        return self._last_step[self._sources[number]] == number

    def write(self, step: Copy | Rewrite) -> Moved:
        """Carries out one step and tells where it went."""
        first = step.sequence if isinstance(step, Rewrite) else step.sequences.first
        if isinstance(step, Rewrite):
            message = step.repair.message
            self._writer.append([message.sequence], [message.timestamp], [message.reply], [message.data])
            sequences = Ranges.of([(first, first)])
        else:
            self._copy(step)
            sequences = step.sequences
        current = self._writer.current
        assert current is not None
        return Moved(
            str(self._source(step).relative_to(self._channels.source)),
            os.fsdecode(self._channel.name),
            current.number,
            sequences,
            "" if isinstance(step, Copy) else f"new record header, the old one was damaged ({step.damage.kind})",
        )

    def _copy(self, step: Copy) -> None:
        run, wanted = step.run, step.sequences
        whole = run.count == wanted.count()
        with mapped(self._source(step), sequential=True) as data:
            at, limit = self._resume.get(id(run), run.start), min(run.end, len(data))
            for batch in scan_slice(
                data, run.subject, self._channels.crc.unchecked, columns=self._columns, start=at, limit=limit
            ):
                if isinstance(batch, Damage):
                    break
                begin, last = at, int(batch.sequence[-1])
                at = int(batch.offset[-1]) + RECORD_HEADER_SIZE + int(batch.size[-1])
                chosen = batch
                if not whole:
                    mask = wanted.select(batch.sequence)
                    chosen = batch if mask.all() else batch.pick(mask)
                    # Later pieces of the same run begin behind this one.
                    self._resume[id(run)] = begin
                if self._channel.origin:
                    self._relabel(data, chosen)
                elif len(chosen.sequence):
                    self._writer.append_records(data, chosen)
                self._progress(at - begin)
                if not whole and last >= wanted.last:
                    return
            if at < run.end:
                raise StoreUnwritableError(
                    f"{self._source(step)}: has changed at offset {at} since it was scanned",
                    "make sure that no server uses the store, and run again",
                )

    def _relabel(self, data: Buffer, batch: MessageColumns) -> None:
        """Writes messages anew, because their subject becomes the name of another channel."""

        def part(starts: list[int], sizes: list[int]) -> list[bytes]:
            return [bytes(data[start : start + size]) for start, size in zip(starts, sizes, strict=True)]

        replies = part(batch.reply_start.tolist(), batch.reply_size.tolist())
        payloads = part(batch.data_start.tolist(), batch.data_size.tolist())
        if payloads:
            self._writer.append(batch.sequence, batch.timestamp, replies, payloads)
