"""Streams as backups in a directory, made without any server (jetstream-migration.md section 4).

    OUT/<stream>/backup.json      {"config": …, "state": …}: the request for a restore
    OUT/<stream>/stream.tar.s2    the archive

This is what `nats stream restore OUT/<stream>` of the official command line takes, and `nats account restore OUT`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from stantools.errors import RefusedError
from stantools.migration.journal import UNWATCHED, Outcome, Stage, Watch
from stantools.migration.plan.model import Level, Note, StreamPlan, TargetKind, TargetRef
from stantools.migration.prepared import PreparedStream, estimated_bytes, room_problems
from stantools.migration.proof.stream import Proof
from stantools.migration.targets.files import ARCHIVE, REQUEST, FileDestination, Placed, prove_backup
from stantools.migration.targets.loading import DEFAULTS, ApplyOptions, Existing
from stantools.nats.stream_names import name_problem
from stantools.progress import Progress
from stantools.recovery.place import check_room
from stantools.store.atomic import absolute, clear_leftovers, new_directory
from stantools.store.durable import fsync_directory, write_all, writing
from stantools.streamfiles.meta import ArchiveState, stream_meta


class BackupDirectory(FileDestination):
    """A directory with a backup of each stream.

    Args:
        out: The directory; made if it is missing.
    """

    outcome = Outcome.WRITTEN

    def __init__(self, out: Path) -> None:
        self._out = absolute(out)

    def reference(self) -> TargetRef:
        """Returns the directory."""
        return TargetRef(TargetKind.BACKUP, (str(self._out),))

    def directory(self, stream: str) -> Path:
        """Returns where the backup of a stream goes.

        Raises:
            RefusedError: The name cannot be that of a stream.
        """
        if problem := name_problem(stream):
            raise RefusedError(f"stream {stream!r}: {problem}", "change the name in the plan")
        return self._out / stream

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Note]:
        """Looks for room, and for what already exists."""
        notes = []
        for stream in streams:
            there = self.directory(stream.name)
            if there.exists() and stream.name not in begun and options.existing is Existing.REPLACE:
                text = f"{there} already exists, and backups are not replaced"
                notes.append(Note(Level.PROBLEM, stream.name, text, "remove it, or choose another directory"))
        existing = next(path for path in (self._out, *self._out.parents) if path.exists())
        if not os.access(existing, os.W_OK | os.X_OK):
            text = f"{existing} cannot be written"
            notes.append(Note(Level.PROBLEM, str(self._out), text, "choose another directory, or change its mode"))
        return notes + room_problems(self._out, streams)

    def place(self, stream: PreparedStream, options: ApplyOptions = DEFAULTS, watch: Watch = UNWATCHED) -> Placed:
        """Writes the backup of a stream; another one that is there is never replaced."""
        target = self.directory(stream.name)
        if target.is_dir() and any(target.iterdir()):
            return self._present(target, stream, watch)
        check_room(target, estimated_bytes(stream.plan))
        with writing(self._out, "nothing was written"):
            if not self._out.exists():
                self._out.mkdir(exist_ok=True)  # a task of Spark may have come first
                fsync_directory(self._out.parent)
        with (
            new_directory(target) as directory,
            watch.stage(stream.name, Stage.LOAD, stream.source.count) as progress,
        ):
            state = _write(directory, stream, options.compression, progress)
        return Placed(stream.name, target, state)

    def prove(self, stream: PreparedStream, progress: Progress | None = None) -> Proof:
        """Compares a backup that is there with the store."""
        return prove_backup(self.directory(stream.name), stream, progress)

    def _present(self, target: Path, stream: PreparedStream, watch: Watch) -> Placed:
        for name in (REQUEST, ARCHIVE):
            if not (target / name).is_file():
                raise RefusedError(
                    f"{target}: exists already and is not a backup: it has no {name}", "choose another directory"
                )
        clear_leftovers(target)
        with watch.stage(stream.name, Stage.PROVE, stream.source.count) as progress:
            proof = self.prove(stream, progress)
        if proof.findings:
            raise RefusedError(
                f"{target}: holds another backup: {proof.findings[0].detail}",
                "remove it if it is not needed any more, or choose another directory",
            )
        return Placed(stream.name, target, stream.measure(), present=True)


def request(plan: StreamPlan, state: ArchiveState) -> dict[str, Any]:
    """Returns the request for a restore.

    All that is in the archive's configuration is said again, since the official command line knows other defaults than
    servers do.
    """
    config = json.loads(stream_meta(plan.name, plan.config, plan.created_ns))
    del config["Created"]
    return {"config": {**config, **plan.config}, "state": state.as_json() | {"consumer_count": len(plan.consumers)}}


def _write(directory: Path, stream: PreparedStream, compression: str, progress: Progress) -> ArchiveState:
    archive = stream.archive(stream.plan.config, compression)
    descriptor = os.open(directory / ARCHIVE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for piece in stream.pieces(archive, progress):
            write_all(descriptor, piece)
    finally:
        os.close(descriptor)
    text = json.dumps(request(stream.plan, archive.state), indent=2, ensure_ascii=False)
    (directory / REQUEST).write_text(text + "\n", encoding="utf-8")
    return archive.state
