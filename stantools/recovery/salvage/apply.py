"""Writing a salvaged store: a new directory, whole or not there at all.

A store grows beside its place, in a directory of `store.atomic`, which makes the whole of it appear at once:

    .<name>.stantools-partial/
        content/            becomes the new store: server.dat, clients.dat, the channels, the manifest at the end
        work-<run>/         of tasks; gone when the run has ended, so that a task that outlives it harms nothing
            <attempt>/      of one attempt of one task: the channels as they are being written
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stantools.errors import StoreUnwritableError
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import INDEX_RECORD_SIZE
from stantools.progress import Progress
from stantools.recovery.place import check_outside, check_room
from stantools.recovery.salvage.manifest import Digest, Hasher, Moved, write_manifest
from stantools.recovery.salvage.model import ChannelPlan, Copy, SalvagePlan, SalvageResult, Step
from stantools.store.atomic import absolute, new_directory
from stantools.store.directory import MANIFEST_FILE
from stantools.store.durable import fsync_directory, sync_tree, writing
from stantools.store.limits import ONE_SLICE
from stantools.store.mapping import Buffer, mapped
from stantools.store.reading import BATCH_ROWS, among, scan_slice
from stantools.store.resync import Damage
from stantools.store.slicewriter import SliceWriter
from stantools.store.storewriter import StoreWriter
from stantools.work import Threads

#: Room that is asked for beyond the planned bytes: logs, the manifest.
_SPARE = 1.05
#: Bytes of a filler message, generously.
_FILLER = 128
#: So many channels at most are written together, and then synced together.
_GROUP = 256
#: What a channel costs besides its messages, as if it had so many more bytes.
_OPENING = 64 << 10


def apply_salvage(plan: SalvagePlan, out: Path, *, progress: Progress | None = None) -> SalvageResult:
    """Writes the new store.

    It is built beside its place and renamed at the end, all of it durable by then. A killed run leaves nothing under
    the name; running again clears what it left.

    Args:
        plan: What to write.
        out: The new directory; must not exist, or be empty.
        progress: Called with the number of data bytes as they are written.

    Raises:
        RefusedError: There is not enough room, or `out` lies inside the old store.
        StoreUnwritableError: It cannot be written.
        StoreUnreadableError: The old store has changed since it was planned.
    """
    work = Threads(plan.options.workers)
    with building(plan, out) as build:
        copy = partial(copy_channels, hasher=build.hasher, progress=work.inside(progress))
        for number, copied in enumerate(work.in_order(copy, build.items)):
            build.take(number, copied)
        build.complete()
    return result_of(plan, out)


@contextmanager
def building(plan: SalvagePlan, out: Path, *, besides: int = 0, group: int = 0) -> Iterator[Build]:
    """Makes a new store, which is there when the block has ended well; what a killed run has left is cleared before.

    Args:
        plan: What to write.
        out: Where to; must not exist, or be empty.
        besides: Bytes that other stores need on the same file system.
        group: Channels are written by tasks that may be repeated, together up to so many bytes; 0: by this process,
            each alone.

    Raises:
        RefusedError: There is not enough room, it would lie inside the old store, or another run is writing there.
        StoreUnwritableError: It cannot be written.
    """
    for each in plan.directories:
        check_outside(each, out)
    check_room(out, room_needed(plan) + besides)
    with (
        new_directory(out, untouched=f"{plan.source} is as it was", like=plan.directories[0]) as content,
        Hasher(content, plan.options.workers) as hasher,
    ):
        yield Build(plan, content, hasher, group)


def room_needed(plan: SalvagePlan) -> int:
    """Returns about how many bytes a new store needs."""
    filled = sum(channel.filled.count() for channel in plan.channels)
    indexed = INDEX_RECORD_SIZE * (plan.messages + filled)
    return int((plan.bytes + indexed + _FILLER * filled) * _SPARE)


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


@dataclass(frozen=True)
class CopyItem:
    """Channels of a new store that are written together."""

    channels: tuple[ChannelPlan, ...]  #: what to write
    content: Path  #: the new store while it is not complete
    #: Where an attempt writes before it moves what it wrote to `content`; None writes there directly.
    attempts: Path | None
    source: Path  #: the old store
    crc: Crc  #: the CRC of both
    fill_gaps: bool  #: put an empty message in the place of every missing one

    @property
    def size(self) -> int:
        """Bytes of the data files, about."""
        return sum(channel.size for channel in self.channels)

    @property
    def cost(self) -> int:
        """The work it takes, in bytes."""
        return self.size + _OPENING * len(self.channels)


@dataclass(frozen=True)
class Copied:
    """What was written of a `CopyItem`."""

    moved: list[Moved]  #: where the messages of each channel went
    files: dict[str, Digest]  #: size and hash of each file that an attempt made, by its path in the new store


class Build:
    """A store that is being written: begun and completed here, its channels are written by whoever takes the items.

    Args:
        plan: What is written.
        content: The directory that becomes the store.
        hasher: Hashes what is written there directly.
        group: See `building`.

    Raises:
        StoreUnwritableError: Its root cannot be written.
    """

    def __init__(self, plan: SalvagePlan, content: Path, hasher: Hasher, group: int = 0) -> None:
        self._plan = plan
        self._content = content
        self.hasher = hasher
        attempts = None
        if group:
            attempts = content.parent / f"work-{uuid.uuid4().hex}"
            with writing(attempts):
                attempts.mkdir()
        store = StoreWriter(content, plan.crc)
        store.write_server(plan.server)
        store.write_clients(plan.clients)
        #: What `copy_channels` has to write.
        self.items = [
            CopyItem(each, content, attempts, plan.source, plan.crc, plan.options.fill_gaps)
            for each in _groups(plan.channels, group)
        ]
        self._copied: dict[int, Copied] = {}

    def take(self, number: int, copied: Copied) -> None:
        """Notes that an item was written."""
        self._copied[number] = copied

    def complete(self) -> None:
        """Writes the manifest, when all items were written.

        Raises:
            StoreUnwritableError: It cannot be written, or something of what was written is not there.
        """
        copied = [self._copied[number] for number in range(len(self.items))]
        files = {name: digest for each in copied for name, digest in each.files.items()}
        for name, digest in files.items():
            self._check(name, digest["size"])
        self.hasher.add_files(self._content)
        files |= self.hasher.digests()
        ordered = dict(sorted(files.items(), key=lambda each: Path(each[0])))
        write_manifest(self._content, self._plan, [moved for each in copied for moved in each.moved], ordered)

    def _check(self, name: str, size: int) -> None:
        path = self._content / name
        with writing(path, f"{self._plan.source} is as it was"):
            found = path.stat().st_size
        if found != size:
            raise StoreUnwritableError(
                f"{path}: has {found} bytes, {size} were written",
                "see whether all machines share the file system of --out, and whether it is healthy; then run it again",
            )


def _groups(channels: list[ChannelPlan], most: int) -> Iterator[tuple[ChannelPlan, ...]]:
    """Puts channels that follow each other together."""
    group: list[ChannelPlan] = []
    size = 0
    for channel in channels:
        if group and (size + channel.size > most or not most or len(group) == _GROUP):
            yield tuple(group)
            group, size = [], 0
        group.append(channel)
        size += channel.size
    if group:
        yield tuple(group)


def copy_channels(item: CopyItem, *, hasher: Hasher | None = None, progress: Progress | None = None) -> Copied:
    """Writes channels into a new store. With attempts it may be done several times, also at the same time.

    An attempt syncs its channels and moves them to their place one by one. A channel that already exists was moved
    by another attempt; it has the same bytes, because the same plan makes the same files.

    Args:
        item: What to write.
        hasher: Hashes what is written without attempts; that of the build.
        progress: Called with the number of data bytes as they are written.

    Raises:
        StoreUnwritableError: They cannot be written, or the run has been given up.
        StoreUnreadableError: The old store has changed since it was planned.
    """
    if item.attempts is None:
        assert hasher is not None
        return Copied(_write_channels(item, item.content, hasher, progress), {})
    if not item.attempts.is_dir():
        raise StoreUnwritableError(
            f"{item.attempts}: is not there where the task runs",
            "--out has to lie on a file system that this machine and all workers see under the same path",
        )
    attempt = item.attempts / uuid.uuid4().hex
    with writing(attempt):
        attempt.mkdir()
    try:
        with Hasher(attempt) as own:
            moved = _write_channels(item, attempt, own, progress)
            copied = Copied(moved, own.digests())
        with writing(item.content):
            sync_tree(attempt)
            for each in item.channels:
                name = os.fsdecode(each.name)
                _move(attempt / name, item.content / name)
            fsync_directory(item.content)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    return copied


def _move(made: Path, target: Path) -> None:
    """Moves a whole channel to its name, unless another attempt has been faster."""
    try:
        made.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _write_channels(item: CopyItem, directory: Path, hasher: Hasher, progress: Progress | None) -> list[Moved]:
    return [one for each in item.channels for one in _write_channel(item, each, directory, hasher, progress)]


def _write_channel(
    item: CopyItem, channel: ChannelPlan, directory: Path, hasher: Hasher, progress: Progress | None
) -> list[Moved]:
    """Writes the subscriptions and the messages of one channel, and returns where the messages went."""
    store = StoreWriter(directory, item.crc)
    store.write_sub_records(channel.name, channel.subscriptions.encoded(item.crc))
    writer = store.slices(channel.name, ONE_SLICE, fill_gaps=item.fill_gaps)
    moved: list[Moved] = []
    with writer:
        copier = _Copier(item, channel, writer, progress)
        for number, step in enumerate(channel.steps):
            moved.append(copier.write(step))
            if copier.slice_is_done(number):
                # Where a slice of the old store ends, one of the new store ends too.
                writer.close()
                done = writer.finished[-1].number
                hasher.add(writer.directory / f"msgs.{done}.dat")
                hasher.add(writer.directory / f"msgs.{done}.idx")
    hasher.add_files(writer.directory)
    return moved


class _Copier:
    """Carries out the steps of one channel."""

    def __init__(self, item: CopyItem, channel: ChannelPlan, writer: SliceWriter, progress: Progress | None) -> None:
        self._item = item
        self._channel = channel
        self._writer = writer
        self._progress = progress
        rows = max((step.run.count for step in channel.steps if isinstance(step, Copy)), default=1)
        self._columns = MessageColumns(min(rows, BATCH_ROWS))
        self._resume: dict[int, int] = {}
        self._last_step: dict[Path, int] = {}
        for number, step in enumerate(channel.steps):
            self._last_step[step.path] = number

    def slice_is_done(self, number: int) -> bool:
        """Returns whether no later step takes anything from the slice of this step."""
        return self._last_step[self._channel.steps[number].path] == number

    def write(self, step: Step) -> Moved:
        """Carries out one step and reports where it went."""
        note = ""
        if isinstance(step, Copy):
            self._copy(step)
        else:
            note = step.note
            for message in step.messages():
                self._writer.append([message.sequence], [message.timestamp], [message.reply], [message.data])
                if self._progress:
                    self._progress(len(message.data))
        current = self._writer.current
        assert current is not None
        file = str(step.path.relative_to(self._item.source))
        return Moved(file, os.fsdecode(self._channel.name), current.number, step.sequences, note)

    def _copy(self, step: Copy) -> None:
        run, wanted = step.run, step.sequences
        whole = run.count == wanted.count()
        with mapped(step.path, sequential=True) as data:
            at, crc = self._resume.get(id(run), run.start), self._item.crc.unchecked
            for batch in scan_slice(data[: run.end], run.subject, crc, columns=self._columns, start=at):
                if isinstance(batch, Damage):
                    break
                begin, last = at, int(batch.sequence[-1])
                at = batch.end
                chosen = batch
                if not whole:
                    chosen = among(batch, wanted)
                    # Later pieces of the same run begin behind this one.
                    self._resume[id(run)] = begin
                if self._channel.origin:
                    self._relabel(data, chosen)
                elif len(chosen.sequence):
                    self._writer.append_records(data, chosen)
                if self._progress:
                    self._progress(at - begin)
                if not whole and last >= wanted.last:
                    return
            if at < run.end:
                raise StoreUnwritableError(
                    f"{step.path}: has changed at offset {at} since it was scanned",
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
