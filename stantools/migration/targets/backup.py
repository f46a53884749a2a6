"""Streams as backups in a directory, made without any server (jetstream-migration.md section 4).

    OUT/<stream>/backup.json      {"config": …, "state": …}: the request for a restore
    OUT/<stream>/stream.tar.s2    the archive

This is what `nats stream restore OUT/<stream>` of the official command line takes, and `nats account restore OUT`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.errors import RefusedError
from stantools.migration.archive.framing import STORED
from stantools.migration.archive.meta import ArchiveState, stream_meta
from stantools.migration.journal import Outcome, Stage, Unwatched, Watch
from stantools.migration.plan.model import Level, Note, StreamPlan, TargetKind, TargetRef
from stantools.migration.plan.names import name_problem
from stantools.migration.prepared import PreparedStream, estimated_bytes, room_problems
from stantools.migration.proof.stream import Proof
from stantools.migration.targets.files import ARCHIVE, REQUEST, FileDestination, prove_backup
from stantools.migration.targets.loading import ApplyOptions, Existing
from stantools.recovery.place import check_room
from stantools.store.atomic import absolute, clear_leftovers, new_directory
from stantools.store.durable import fsync_directory, write_all, writing


@dataclass(frozen=True)
class BackupResult:
    """A backup that is there.

    Attributes:
        stream: The stream's name.
        directory: Where.
        state: What a server will say of the stream when it has restored it.
        bytes: Size of the archive.
        present: It was there already, exactly so.
    """

    stream: str
    directory: Path
    state: ArchiveState
    bytes: int
    present: bool = False


def backup_directory(out: Path, stream: str) -> Path:
    """Returns where the backup of a stream goes.

    Raises:
        RefusedError: The name cannot be that of a stream.
    """
    if problem := name_problem(stream):
        raise RefusedError(f"stream {stream!r}: {problem}", "change the name in the plan")
    return out / stream


def write_backup(
    out: Path, stream: PreparedStream, *, compression: str = STORED, watch: Watch | None = None
) -> BackupResult:
    """Writes the backup of a stream: it is there whole and synced, or not at all.

    One that is there already is compared with the source, message by message, and left alone if it is exactly this.

    Args:
        out: The directory for backups; made if it is missing.
        stream: The stream.
        compression: `stored` or `snappy`.
        watch: Told how many messages are written, or compared.

    Raises:
        RefusedError: Another backup is there, another run is writing it, there is too little room, or the stream
            cannot be made of an archive.
        StoreUnwritableError: It cannot be written.
        StoreUnreadableError: The source, or what is there, cannot be read.
    """
    target = backup_directory(absolute(out), stream.name)
    watch = watch or Unwatched()
    if target.is_dir() and any(target.iterdir()):
        return _present(target, stream, watch)
    check_room(target, estimated_bytes(stream.plan))
    with writing(out, "nothing was written"):
        if not out.exists():
            out.mkdir()
            fsync_directory(absolute(out).parent)
    with new_directory(target) as directory:
        state = _write(directory, stream, compression, watch)
    return BackupResult(stream.name, target, state, (target / ARCHIVE).stat().st_size)


def request(plan: StreamPlan, state: ArchiveState) -> dict[str, Any]:
    """Returns the request for a restore.

    All that is in the archive's configuration is said again, since the official command line knows other defaults than
    servers do.
    """
    config = json.loads(stream_meta(plan.name, plan.config, plan.created_ns))
    del config["Created"]
    return {"config": {**config, **plan.config}, "state": state.as_json() | {"consumer_count": len(plan.consumers)}}


def _present(target: Path, stream: PreparedStream, watch: Watch) -> BackupResult:
    for name in (REQUEST, ARCHIVE):
        if not (target / name).is_file():
            raise RefusedError(
                f"{target}: exists already and is no backup: it has no {name}", "choose another directory"
            )
    clear_leftovers(target)
    watch.begin(stream.name, Stage.PROVE, stream.source.count)
    try:
        proof = prove_backup(target, stream, watch)
    finally:
        watch.end(stream.name)
    if proof.findings:
        raise RefusedError(
            f"{target}: holds another backup: {proof.findings[0].detail}",
            "remove it if it is not needed any more, or choose another directory",
        )
    return BackupResult(stream.name, target, stream.measure(), (target / ARCHIVE).stat().st_size, present=True)


def _write(directory: Path, stream: PreparedStream, compression: str, watch: Watch) -> ArchiveState:
    archive = stream.archive(stream.plan.config, compression)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    watch.begin(stream.name, Stage.LOAD, stream.source.count)
    descriptor = os.open(directory / ARCHIVE, flags, 0o666)
    try:
        for piece in stream.pieces(archive, watch):
            write_all(descriptor, piece)
    finally:
        os.close(descriptor)
        watch.end(stream.name)
    text = json.dumps(request(stream.plan, archive.state), indent=2, ensure_ascii=False)
    (directory / REQUEST).write_text(text + "\n", encoding="utf-8")
    return archive.state


class BackupDestination(FileDestination):
    """A directory with a backup of each stream.

    Args:
        out: The directory; made if it is missing.
    """

    def __init__(self, out: Path) -> None:
        self._out = out.absolute()

    def reference(self) -> TargetRef:
        """Returns the directory."""
        return TargetRef(TargetKind.BACKUP, (str(self._out),))

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Note]:
        """Looks for room, and for what is there already."""
        notes = []
        for stream in streams:
            there = backup_directory(self._out, stream.name)
            if there.exists() and stream.name not in begun and options.existing is Existing.REPLACE:
                text = f"{there} is there already, and backups are not replaced"
                notes.append(Note(Level.PROBLEM, stream.name, text, "remove it, or choose another directory"))
        existing = next(path for path in (self._out, *self._out.parents) if path.exists())
        if not os.access(existing, os.W_OK | os.X_OK):
            text = f"{existing} cannot be written"
            notes.append(Note(Level.PROBLEM, str(self._out), text, "choose another directory, or change its mode"))
        return notes + room_problems(self._out, streams)

    def _load(self, stream: PreparedStream, options: ApplyOptions, watch: Watch) -> tuple[ArchiveState, Outcome]:
        result = write_backup(self._out, stream, compression=options.compression, watch=watch)
        return result.state, Outcome.COMPLETE if result.present else Outcome.WRITTEN

    def _prove(self, stream: PreparedStream, watch: Watch) -> Proof:
        return prove_backup(backup_directory(self._out, stream.name), stream, watch)
