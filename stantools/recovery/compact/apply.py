"""Writing a compacted store: into a new directory, or in place of the old one.

Nothing appears under its name before it was written, synced, read back and compared with the plan.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stantools.errors import RefusedError, StoreUnwritableError, readable
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.inspection.findings import Severity
from stantools.inspection.verify import verify
from stantools.progress import Progress
from stantools.recovery.compact.plan import HARMLESS, ChannelCompaction, CompactionPlan, stamp
from stantools.recovery.place import check_outside, check_room
from stantools.store.atomic import absolute, new_directory, replacement_directory
from stantools.store.clientlog import read_clients
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE, SUBS_FILE, open_datastore
from stantools.store.durable import writing
from stantools.store.locks import check_not_in_use, hold_ft_lock
from stantools.store.mapping import mapped
from stantools.store.resync import DamagedRange
from stantools.store.slice_reader import SliceFile
from stantools.store.slicewriter import SliceWriter
from stantools.store.storewriter import StoreWriter
from stantools.store.sublog import read_subs
from stantools.work import ThreadWork

#: Factor on the planned bytes for the check of free space: headers, other files, partial blocks.
_SPACE_FACTOR = 1.05


@dataclass(frozen=True)
class CompactionResult:
    path: Path  #: the compacted store
    backup: Path | None  #: present path of the old store, if it was replaced
    messages: int
    slices: int
    bytes: int  #: size of all its files


def apply_compaction(plan: CompactionPlan, out: Path, *, progress: Progress | None = None) -> CompactionResult:
    """Writes the compacted store to a new directory; the old one stays as it is.

    `out` must not exist, or be empty. `progress` is called with bytes of data files. Raises `RefusedError` if there
    is not enough space, `out` is inside the old store, or the old store has changed; `StoreUnwritableError` if the
    result cannot be written or differs from the plan.
    """
    source = plan.store.path
    check_outside(source, out)
    check_room(out, room_needed(plan))
    with new_directory(out, untouched=f"{source} is unchanged", mode_source=source) as content:
        _fill(plan, content, progress)
    return _result(plan, out if out.is_dir() else absolute(out), None)


def compact_in_place(
    plan: CompactionPlan,
    *,
    backup: Path | None = None,
    force: bool = False,
    quiet: float | None = None,
    progress: Progress | None = None,
) -> CompactionResult:
    """Writes the compacted store next to the old one, and exchanges the two.

    `backup` is the new path of the old store, a sibling that does not exist; by default its name with the time.
    `force` skips the check that no server uses the store, which must be unchanged for `quiet` seconds
    (`QUIET_SECONDS` of `stantools.store.locks` by default). `progress` is called with bytes of data files. Errors as
    for `apply_compaction`.

    After an interruption, `atomic.finish_replacement` must be called before a new plan is made.
    """
    store = absolute(plan.store.path)
    if backup is None:
        backup = store.with_name(f"{store.name}.before-compact-{time.strftime('%Y%m%dT%H%M%S')}")
    check_room(store, room_needed(plan))
    check_not_in_use(store, force=force, quiet=quiet)
    with hold_ft_lock(store), replacement_directory(store, backup) as content:
        _fill(plan, content, progress)
    return _result(plan, store, backup)


def room_needed(plan: CompactionPlan) -> int:
    """Returns the approximate number of bytes that the compacted store needs."""
    return int(plan.bytes_after * _SPACE_FACTOR)


def _fill(plan: CompactionPlan, content: Path, progress: Progress | None) -> None:
    """Writes the new store, and verifies it."""
    _check_unchanged(plan)
    new = StoreWriter(content, plan.crc)
    old = plan.store
    if old.server is not None:
        with writing(content / SERVER_FILE):
            shutil.copy2(old.server, content / SERVER_FILE)
    if old.clients is not None:
        with mapped(old.clients) as buffer:
            new.write_clients(read_clients(buffer, plan.crc).clients.values())
        _take_mode(old.clients, content / CLIENTS_FILE)
    work = ThreadWork(plan.options.workers)
    for _ in work.in_order(lambda channel: _write_channel(plan, channel, new, progress), plan.channels):
        pass
    done = {SERVER_FILE, CLIENTS_FILE, *(channel.files.name for channel in plan.channels)}
    done.update(path.name for path in old.leftovers)
    _copy_other_files(old.path, old.path, content, done)
    _check_unchanged(plan)
    _check_result(plan, content, progress)


def _write_channel(
    plan: CompactionPlan, channel: ChannelCompaction, new: StoreWriter, progress: Progress | None
) -> None:
    files = channel.files
    directory = new.channel(files.raw_name)
    if files.subs is not None:
        with mapped(files.subs) as buffer:
            subscriptions = read_subs(buffer, plan.crc).subscriptions
        live = {number: each for number, each in sorted(subscriptions.items()) if number not in channel.orphans}
        new.write_subs(files.raw_name, ((each.state, each.pending) for each in live.values()))
        with mapped(directory / SUBS_FILE) as buffer:
            if read_subs(buffer, plan.crc).subscriptions != live:
                raise _plan_mismatch(f"{files.name}/{SUBS_FILE}: its subscriptions differ from the plan")
        _take_mode(files.subs, directory / SUBS_FILE)
    with new.slices(files.raw_name, channel.limits, last_number=channel.first_number - 1) as writer:
        _copy_messages(plan, channel, writer, progress)
    if channel.slices and channel.slices[0].files.data is not None:
        for path in directory.glob("msgs.*"):
            _take_mode(channel.slices[0].files.data, path)
    done = {SUBS_FILE}
    for each in (*files.slices, *files.lone_indexes):
        if not each.archived:
            done.update(path.name for path in (each.data, each.index) if path is not None)
    _copy_other_files(plan.store.path, files.path, directory, done)
    with writing(directory):
        directory.chmod(stat.S_IMODE(files.path.stat().st_mode))


def _copy_messages(
    plan: CompactionPlan, channel: ChannelCompaction, writer: SliceWriter, progress: Progress | None
) -> None:
    skip = channel.skip
    for each in channel.slices:
        if skip >= each.count:
            skip -= each.count
            continue
        assert each.files.data is not None
        with mapped(each.files.data, sequential=True) as data:
            for batch in SliceFile(data, channel.files.raw_name, plan.crc).records():
                if isinstance(batch, DamagedRange):
                    raise _changed(f"{each.files.data}: at offset {batch.offset}")
                rows = batch.capacity
                if skip < rows:
                    writer.append_records(batch.part(skip, rows))
                skip = max(skip - rows, 0)
                if progress:
                    progress(int(batch.size.sum(dtype=np.int64)) + rows * RECORD_HEADER_SIZE)


def _copy_other_files(root: Path, source: Path, target: Path, done: set[str]) -> None:
    """Copies all other files: foreign files, archived slices, raft logs, links."""
    with writing(target):
        for entry in os.scandir(source):
            if entry.name in done:
                continue
            path = target / entry.name
            if entry.is_symlink():
                link = Path(entry.path)
                pointed = link.readlink()
                place = Path(os.path.abspath(link.parent / pointed))  # noqa: PTH100 (must not follow further links)
                within = not pointed.is_absolute() and root in place.parents
                path.symlink_to(pointed if within else place)
            elif entry.is_dir():
                shutil.copytree(entry.path, path, symlinks=True)
            elif entry.is_file():
                shutil.copy2(entry.path, path)


def _take_mode(old: Path, new: Path) -> None:
    with writing(new):
        new.chmod(stat.S_IMODE(old.stat().st_mode))


def _check_unchanged(plan: CompactionPlan) -> None:
    now = stamp(plan.store)
    for name in now.keys() | plan.stamp.keys():
        if now.get(name) != plan.stamp.get(name):
            raise _changed(f"{plan.store.path / name}:")


def _changed(place: str) -> RefusedError:
    return RefusedError(
        f"{place} has changed during the compaction; nothing was replaced",
        "stop the server that uses the store, then run it again",
    )


def _check_result(plan: CompactionPlan, content: Path, progress: Progress | None) -> None:
    """Reads back the new store and compares it with the plan."""

    def still_wanted(_count: int) -> None:
        if progress:
            progress(0)

    verdict = verify(open_datastore(content, plan.crc), workers=plan.options.workers, progress=still_wanted)
    tolerated = HARMLESS | {finding.code for finding in plan.findings}
    problems = [f for f in verdict.findings if f.severity != Severity.INFO and f.code not in tolerated]
    wrong = [f"{f.file}: {f.detail}" for f in problems]
    found = {each.name: each for each in verdict.channels}
    for channel in plan.channels:
        name = channel.files.name
        if name not in found or (found[name].intact, found[name].messages) != (channel.kept, channel.messages):
            wrong.append(f"{name}: its messages differ from the plan")
    if wrong:
        raise _plan_mismatch(wrong[0])


def _plan_mismatch(difference: str) -> StoreUnwritableError:
    return StoreUnwritableError(
        f"the new store differs from the plan ({difference}); the old store is unchanged",
        "check the disk and the memory of this machine, and run it again",
    )


def _result(plan: CompactionPlan, path: Path, backup: Path | None) -> CompactionResult:
    with readable(path):
        size = sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
        slices = sum(1 for _ in path.glob("*/msgs.*.dat"))
    messages = sum(channel.messages for channel in plan.channels)
    return CompactionResult(path, backup, messages, slices, size)
