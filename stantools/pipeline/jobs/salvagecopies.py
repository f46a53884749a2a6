"""Writing salvaged stores with many hands: the driver begins and ends each store, tasks write its channels.

A store grows beside its place, in a directory of `store.atomic`, which makes the whole of it appear at once:

    .<name>.stantools-partial/
        content/            becomes the new store: the driver writes server.dat, clients.dat and the manifest
        work-<run>/         of this run; gone when the run has ended, so that a task that outlives it harms nothing
            <attempt>/      of one attempt of one task: the channels as they are being written

An attempt syncs its channels and moves them into `content` one by one. A channel that is there already was moved by
another attempt of the same task; it has the same bytes, because the same plan makes the same files.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.errors import StoreUnwritableError
from stantools.format.crc import Crc
from stantools.recovery.salvage.apply import (
    Channels,
    check_place,
    write_channel,
    write_root,
)
from stantools.recovery.salvage.hashing import Hasher
from stantools.recovery.salvage.manifest import Moved, write_manifest
from stantools.recovery.salvage.model import ChannelPlan, SalvagePlan
from stantools.store.atomic import new_directory
from stantools.store.durable import fsync_directory, sync_tree, writing

#: Channels are copied together up to so many bytes, and so many of them: they are then synced together.
GROUP_BYTES = 64 << 20
_GROUP = 256
#: What a channel costs besides its messages, as if it had so many more bytes.
_OPENING = 64 << 10


@dataclass(frozen=True)
class CopyItem:
    """Channels of a new store that are written together.

    Attributes:
        channels: What to write.
        work: The directory of this run.
        content: The new store while it is not complete.
        source: The old store.
        polynomial: The CRC polynomial of both.
        fill_gaps: Put an empty message in the place of every missing one.
    """

    channels: tuple[ChannelPlan, ...]
    work: str
    content: str
    source: str
    polynomial: int
    fill_gaps: bool

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
    """What was written of a `CopyItem`.

    Attributes:
        moved: Where the messages of each channel went.
        files: Size and hash of each file, by its path in the new store.
    """

    moved: list[list[Moved]]
    files: dict[str, Any]


def copy_channels(item: CopyItem) -> Copied:
    """In a task: writes channels into a new store. May be done several times, also at the same time.

    Raises:
        StoreUnwritableError: They cannot be written, or the run has been given up.
        StoreUnreadableError: The old store has changed since it was planned.
    """
    work, content = Path(item.work), Path(item.content)
    if not work.is_dir():
        raise StoreUnwritableError(
            f"{work}: is not there where the task runs",
            "--out has to lie on a file system that this machine and all workers see under the same path",
        )
    attempt = work / uuid.uuid4().hex
    with writing(attempt):
        attempt.mkdir()
    try:
        channels = Channels(attempt, Path(item.source), Crc(item.polynomial), item.fill_gaps)
        with Hasher(attempt, 1) as hasher:
            moved = [write_channel(channels, each, hasher=hasher, progress=_silent) for each in item.channels]
            files = hasher.all()
        with writing(content):
            sync_tree(attempt)
            for each in item.channels:
                name = os.fsdecode(each.name)
                _move(attempt / name, content / name)
            fsync_directory(content)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    return Copied(moved, files)


def _silent(_count: int) -> None:
    pass


def _move(made: Path, target: Path) -> None:
    """Gives a whole channel its name, unless another attempt has been faster.

    Raises:
        OSError: It cannot be renamed.
    """
    try:
        made.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


class Build:
    """A store that is being written.

    Args:
        plan: What is written.
        content: The directory that becomes the store.

    Attributes:
        items: What tasks have to write.
    """

    def __init__(self, plan: SalvagePlan, content: Path) -> None:
        self._plan = plan
        self._content = content
        work = content.parent / f"work-{uuid.uuid4().hex}"
        with writing(work):
            work.mkdir()
        write_root(plan, content)
        self.items = [
            CopyItem(
                tuple(plan.channels[place] for place in group),
                str(work),
                str(content),
                str(plan.source),
                plan.crc.polynomial,
                plan.options.fill_gaps,
            )
            for group in _groups(plan.channels)
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
        with Hasher(self._content, 1) as hasher:
            files |= hasher.all(below=False)
        ordered = dict(sorted(files.items(), key=lambda each: Path(each[0])))
        write_manifest(
            self._content, self._plan, [one for each in copied for part in each.moved for one in part], ordered
        )

    def _check(self, name: str, size: int) -> None:
        path = self._content / name
        with writing(path, f"{self._plan.source} is as it was"):
            found = path.stat().st_size
        if found != size:
            raise StoreUnwritableError(
                f"{path}: has {found} bytes, {size} were written",
                "see whether all machines share the file system of --out, and whether it is healthy; then run it again",
            )


@contextmanager
def building(plan: SalvagePlan, out: Path, *, besides: int = 0) -> Iterator[Build]:
    """Makes a new store, which is there when the block has ended well; what a killed run has left is cleared before.

    Args:
        plan: What to write.
        out: Where to; must not exist, or be empty.
        besides: Bytes that other stores need on the same file system.

    Raises:
        RefusedError: There is not enough room, it would lie inside the old store, or another run is writing there.
        StoreUnwritableError: It cannot be written.
    """
    check_place(plan, out, besides=besides)
    with new_directory(out, untouched=f"{plan.source} is as it was", like=plan.source) as content:
        yield Build(plan, content)


def _groups(channels: list[ChannelPlan]) -> Iterator[list[int]]:
    """Puts channels that follow each other together, as their places."""
    group: list[int] = []
    size = 0
    for place, channel in enumerate(channels):
        if group and (size + channel.size > GROUP_BYTES or len(group) == _GROUP):
            yield group
            group, size = [], 0
        group.append(place)
        size += channel.size
    if group:
        yield group
