"""Writing a salvaged store: a new directory, which appears as a whole or not at all.

A store is built next to its destination, in a directory of `store.atomic`, which makes it appear at once:

.<name>.stantools-partial/
        content/            becomes the new store: server.dat, clients.dat, the channels, the manifest at the end
        work-<run>/         of tasks; gone when the run has ended, so that a task that outlives it harms nothing
            <attempt>/      of one attempt of one task: the channels while they are written
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
from stantools.format.crc import Crc
from stantools.format.layout import INDEX_RECORD_SIZE
from stantools.inspection.runs import read_run
from stantools.progress import Progress
from stantools.recovery.place import check_outside, check_room
from stantools.recovery.salvage.manifest import Digest, Hasher, MovedMessages, write_manifest
from stantools.recovery.salvage.model import ChannelSalvage, RecordCopy, SalvagePlan, SalvageResult, Step
from stantools.store.atomic import absolute, new_directory
from stantools.store.directory import MANIFEST_FILE
from stantools.store.durable import fsync_directory, sync_tree, writing
from stantools.store.limits import ONE_SLICE
from stantools.store.slicewriter import SliceWriter
from stantools.store.storewriter import StoreWriter
from stantools.work import ThreadWork

#: Factor on the planned bytes for the check of free space: logs, the manifest.
_SPACE_FACTOR = 1.05
#: Upper limit for the bytes of a filler message.
_FILLER = 128
#: Maximum number of channels that are written together, and then synced together.
_GROUP = 256
#: Cost of a channel besides its messages, in bytes of messages.
_OPENING = 64 << 10


def apply_salvage(plan: SalvagePlan, out: Path, *, progress: Progress | None = None) -> SalvageResult:
    """Writes the new store.

    It is built next to its destination and renamed at the end, when all of it is durable. A killed run leaves
    nothing under the name; running again removes its remains. `out` must not exist, or be empty. `progress` is
    called with bytes of data files. Raises `RefusedError` if there is not enough space or `out` is inside the old
    store, `StoreUnwritableError`, and `StoreUnreadableError` if the old store has changed since the plan.
    """
    work = ThreadWork(plan.options.workers)
    with building(plan, out) as build:
        copy = partial(copy_channels, hasher=build.hasher, progress=work.inside(progress))
        for number, copied in enumerate(work.in_order(copy, build.items)):
            build.take(number, copied)
        build.complete()
    return result_of(plan, out)


@contextmanager
def building(plan: SalvagePlan, out: Path, *, extra_bytes: int = 0, group: int = 0) -> Iterator[Build]:
    """Builds a new store, which appears when the block ends well; remains of a killed run are removed before.

    `extra_bytes` is the number of bytes that other stores need on the same file system. `group` is the maximum size of
    channels written together by one task, which may be repeated; 0 writes each channel alone in this process. Errors
    as for `apply_salvage`; also `RefusedError` if another run is writing there.
    """
    for each in plan.directories:
        check_outside(each, out)
    check_room(out, room_needed(plan) + extra_bytes)
    with (
        new_directory(out, untouched=f"{plan.source} is unchanged", mode_source=plan.directories[0]) as content,
        Hasher(content, plan.options.workers) as hasher,
    ):
        yield Build(plan, content, hasher, group)


def room_needed(plan: SalvagePlan) -> int:
    """Returns the approximate number of bytes that a new store needs."""
    filled = sum(channel.filled.count() for channel in plan.channels)
    indexed = INDEX_RECORD_SIZE * (plan.messages + filled)
    return int((plan.bytes + indexed + _FILLER * filled) * _SPACE_FACTOR)


def result_of(plan: SalvagePlan, out: Path) -> SalvageResult:
    """Returns the result for a complete new store."""
    out = out if out.is_dir() else absolute(out)  # missing/../NEW does not resolve, but was written all the same
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

    channels: tuple[ChannelSalvage, ...]
    content: Path  #: the new store while it is incomplete
    #: Directory in which an attempt writes before it moves its files to `content`; None writes there directly.
    attempts: Path | None
    source: Path  #: the old store
    crc: Crc  #: CRC of both
    fill_gaps: bool  #: put an empty message in the place of every missing one

    @property
    def size(self) -> int:
        """Approximate bytes of the data files."""
        return sum(channel.size for channel in self.channels)

    @property
    def cost(self) -> int:
        """Its work, in bytes."""
        return self.size + _OPENING * len(self.channels)


@dataclass(frozen=True)
class CopiedItem:
    """The result of writing a `CopyItem`."""

    moved: list[MovedMessages]  #: destinations of the messages of each channel
    files: dict[str, Digest]  #: size and hash of each file of an attempt, by its path in the new store


class Build:
    """A store that is being written: begun and completed here, while the caller writes the items.

    `content` becomes the store. `hasher` hashes files that are written there directly. `group` is as for `building`.
    Raises `StoreUnwritableError` if the root cannot be written.
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
        #: Work for `copy_channels`.
        self.items = [
            CopyItem(each, content, attempts, plan.source, plan.crc, plan.options.fill_gaps)
            for each in _groups(plan.channels, group)
        ]
        self._copied: dict[int, CopiedItem] = {}

    def take(self, number: int, copied: CopiedItem) -> None:
        """Records the result of an item."""
        self._copied[number] = copied

    def complete(self) -> None:
        """Writes the manifest after all items are written.

        Raises `StoreUnwritableError` if it cannot be written, or a written file is missing.
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
        with writing(path, f"{self._plan.source} is unchanged"):
            found = path.stat().st_size
        if found != size:
            raise StoreUnwritableError(
                f"{path}: has {found} bytes, {size} were written",
                "check that all machines share the file system of --out and that it is healthy; then run it again",
            )


def _groups(channels: list[ChannelSalvage], limit: int) -> Iterator[tuple[ChannelSalvage, ...]]:
    """Groups consecutive channels up to `limit` bytes."""
    group: list[ChannelSalvage] = []
    size = 0
    for channel in channels:
        if group and (size + channel.size > limit or not limit or len(group) == _GROUP):
            yield tuple(group)
            group, size = [], 0
        group.append(channel)
        size += channel.size
    if group:
        yield tuple(group)


def copy_channels(item: CopyItem, *, hasher: Hasher | None = None, progress: Progress | None = None) -> CopiedItem:
    """Writes channels into a new store. With attempts it may run several times, also at the same time.

    An attempt syncs its channels and moves them to their place one by one. A channel that already exists was moved
    by another attempt; it has the same bytes, because the same plan makes the same files. `hasher` hashes files
    written without attempts. `progress` is called with bytes of data files. Raises `StoreUnwritableError` also if
    the run was cancelled, and `StoreUnreadableError` if the old store has changed since the plan.
    """
    if item.attempts is None:
        assert hasher is not None
        return CopiedItem(_write_channels(item, item.content, hasher, progress), {})
    if not item.attempts.is_dir():
        raise StoreUnwritableError(
            f"{item.attempts}: does not exist where the task runs",
            "--out must be on a file system that this machine and all workers see under the same path",
        )
    attempt = item.attempts / uuid.uuid4().hex
    with writing(attempt):
        attempt.mkdir()
    try:
        with Hasher(attempt) as own:
            moved = _write_channels(item, attempt, own, progress)
            copied = CopiedItem(moved, own.digests())
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
    """Moves a whole channel to its name, unless another attempt has done so."""
    try:
        made.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _write_channels(item: CopyItem, directory: Path, hasher: Hasher, progress: Progress | None) -> list[MovedMessages]:
    return [one for each in item.channels for one in _write_channel(item, each, directory, hasher, progress)]


def _write_channel(
    item: CopyItem, channel: ChannelSalvage, directory: Path, hasher: Hasher, progress: Progress | None
) -> list[MovedMessages]:
    """Writes the subscriptions and the messages of one channel, and returns the destinations of the messages."""
    store = StoreWriter(directory, item.crc)
    store.write_sub_records(channel.name, channel.subscriptions.encoded(item.crc))
    writer = store.slices(channel.name, ONE_SLICE, fill_gaps=item.fill_gaps)
    moved: list[MovedMessages] = []
    with writer:
        copier = _Copier(item, channel, writer, progress)
        for number, step in enumerate(channel.steps):
            moved.append(copier.write(step))
            if copier.slice_is_done(number):
                # Where a slice of the old store ends, a slice of the new store ends as well.
                writer.close()
                done = writer.finished[-1].number
                hasher.add(writer.directory / f"msgs.{done}.dat")
                hasher.add(writer.directory / f"msgs.{done}.idx")
    hasher.add_files(writer.directory)
    return moved


class _Copier:
    """Applies the steps of one channel."""

    def __init__(self, item: CopyItem, channel: ChannelSalvage, writer: SliceWriter, progress: Progress | None) -> None:
        self._item = item
        self._channel = channel
        self._writer = writer
        self._progress = progress
        self._last_step: dict[Path, int] = {}
        for number, step in enumerate(channel.steps):
            self._last_step[step.path] = number

    def slice_is_done(self, number: int) -> bool:
        """Returns whether no later step reads the slice of this step."""
        return self._last_step[self._channel.steps[number].path] == number

    def write(self, step: Step) -> MovedMessages:
        """Applies one step and returns the destination of its messages."""
        note = ""
        if isinstance(step, RecordCopy):
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
        return MovedMessages(file, os.fsdecode(self._channel.name), current.number, step.sequences, note)

    def _copy(self, step: RecordCopy) -> None:
        for batch in read_run(step.run, step.sequences, self._item.crc.unchecked):
            if self._channel.origin:
                # Written anew, because their subject becomes the name of another channel.
                self._writer.append(batch.sequence, batch.timestamp, list(batch.replies()), list(batch.payloads()))
            else:
                self._writer.append_records(batch)
            if self._progress:
                self._progress(int(batch.ends[-1] - batch.offset[0]))
