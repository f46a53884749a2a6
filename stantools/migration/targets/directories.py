"""Directories as targets, written without a server: backups, and the store of a stopped nats-server.

A backup is the input of `nats stream restore OUT/<stream>` of the official command line, and of `nats account
restore OUT` (jetstream-migration.md section 4):

    OUT/<stream>/backup.json      {"config": …, "state": …}: the request for a restore
    OUT/<stream>/stream.tar.s2    the archive

In the store directory of a stopped nats-server (jetstream-migration.md section 5.5) the files are exactly those of
the server itself, which opens them at its next start and continues: sequences, gaps, timestamps and consumers are
exact. Placing is refused unless that is certain: no running server, no cluster, no encryption, no stream of the same
name or with the same subjects.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stantools.errors import RefusedError
from stantools.inspection.stream_overview import StreamOverview, stream_overview
from stantools.migration.journal import UNWATCHED, JournalObserver, StreamOutcome, StreamStage
from stantools.migration.plan.migration_plan import Remark, RemarkLevel, StreamPlan, TargetKind, TargetRef
from stantools.migration.prepared_stream import PreparedStream, estimated_bytes, room_problems
from stantools.migration.proof.stream_proof import Proof
from stantools.migration.store_follower import StreamContent
from stantools.migration.targets.file_destination import (
    FileDestination,
    PlacedStream,
    prove_backup,
    prove_stream_directory,
)
from stantools.migration.targets.in_use import find_server
from stantools.migration.targets.layout import (
    GLOBAL_ACCOUNT,
    STREAMS,
    SYSTEM_ACCOUNT,
    Ownership,
    arriving,
    fill,
    parents,
    read_layout,
    tidy,
)
from stantools.migration.targets.stream_load import DEFAULTS, ApplyOptions, ExistingPolicy
from stantools.nats.stream_names import name_problem
from stantools.nats.subjects import overlap
from stantools.progress import Progress
from stantools.recovery.place import check_room
from stantools.sources.jetstream import ARCHIVE, REQUEST
from stantools.store.atomic import absolute, clear_leftovers, new_directory
from stantools.store.durable import fsync_directory, write_all, writing
from stantools.store.locks import QUIET_SECONDS
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.meta import ArchiveState, stream_meta


class BackupDirectory(FileDestination):
    """A directory with a backup of each stream; created if it does not exist."""

    outcome = StreamOutcome.WRITTEN

    def __init__(self, out: Path) -> None:
        self._out = absolute(out)

    def reference(self) -> TargetRef:
        return TargetRef(TargetKind.BACKUP, (str(self._out),))

    def directory(self, stream: str) -> Path:
        if problem := name_problem(stream):
            raise RefusedError(f"stream {stream!r}: {problem}", "change the name in the plan")
        return self._out / stream

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Remark]:
        """Checks writability and existing backups."""
        notes = []
        for stream in streams:
            there = self.directory(stream.name)
            if there.exists() and stream.name not in begun and options.existing is ExistingPolicy.REPLACE:
                text = f"{there} already exists, and a backup is never replaced"
                notes.append(Remark(RemarkLevel.PROBLEM, stream.name, text, "remove it, or choose another directory"))
        existing = next(path for path in (self._out, *self._out.parents) if path.exists())
        if not os.access(existing, os.W_OK | os.X_OK):
            text = f"{existing} cannot be written"
            notes.append(
                Remark(RemarkLevel.PROBLEM, str(self._out), text, "choose another directory, or change its mode")
            )
        return notes + room_problems(self._out, streams)

    def contents(self, names: Collection[str]) -> Mapping[str, str]:
        return {name: "a backup" for name in names if self.directory(name).exists()}

    def place(
        self, stream: PreparedStream, options: ApplyOptions = DEFAULTS, watch: JournalObserver = UNWATCHED
    ) -> PlacedStream:
        """Writes the backup of a stream; never replaces a different one."""
        target = self.directory(stream.name)
        if target.is_dir() and any(target.iterdir()):
            return self._present(target, stream, watch)
        check_room(target, estimated_bytes(stream.plan))
        with writing(self._out, "nothing was written"):
            if not self._out.exists():
                self._out.mkdir(exist_ok=True)  # a Spark task may have created it
                fsync_directory(self._out.parent)
        with (
            new_directory(target) as directory,
            watch.stage(stream.name, StreamStage.LOAD, stream.source.count) as progress,
        ):
            state = _write(directory, stream, options.compression, progress)
        return PlacedStream(stream.name, target, state)

    def prove(self, stream: PreparedStream, progress: Progress | None = None) -> Proof:
        return prove_backup(self.directory(stream.name), stream, progress)

    def _present(self, target: Path, stream: PreparedStream, watch: JournalObserver) -> PlacedStream:
        for name in (REQUEST, ARCHIVE):
            if not (target / name).is_file():
                raise RefusedError(
                    f"{target}: already exists and is not a backup: it has no {name}", "choose another directory"
                )
        clear_leftovers(target)
        with watch.stage(stream.name, StreamStage.PROVE, stream.source.count) as progress:
            proof = self.prove(stream, progress)
        if proof.findings:
            raise RefusedError(
                f"{target}: holds a different backup: {proof.findings[0].detail}",
                "remove it if it is no longer needed, or choose another directory",
            )
        return PlacedStream(stream.name, target, stream.measure(), present=True)


def request(plan: StreamPlan, state: ArchiveState) -> dict[str, Any]:
    """Returns the request for a restore.

    It repeats the whole configuration of the archive, as the official command line has other defaults than servers.
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


#: least seconds between two searches for servers, each of which takes as long as placing a small stream
RECHECK_SECONDS = 0.5

_REPLACE = "use --replace to move it aside and place the new one; or choose another name"
_STOP = "stop it first, or use --force if you know that it does not use this directory"


class StoreDirectory(FileDestination):
    """The store directory of a stopped nats-server, for one account.

    `path` is the server's `store_dir`; if missing or empty it becomes the store of a new server. A server without
    configured accounts has only `$G`. `force` accepts a server that seems to use it. Raises RefusedError for other
    directories.
    """

    # sequential, as the common parent directories may have to be created
    parallel = False
    outcome = StreamOutcome.PLACED

    def __init__(self, path: Path, account: str = GLOBAL_ACCOUNT, *, force: bool = False) -> None:
        self.path = absolute(path)
        self.account = account
        self._force = force
        self._unused_at = -math.inf
        self._layout = read_layout(self.path, account)
        self._streams = self._layout.account_directory(account) / STREAMS
        self._overviews: dict[str, StreamOverview] = {}

    def reference(self) -> TargetRef:
        return TargetRef(TargetKind.STORE, (str(self.path),))

    def directory(self, stream: str) -> Path:
        return self._streams / stream

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Remark]:
        """Checks for a running server, existing streams, and settings that a server would not accept."""
        plans = [stream.plan for stream in streams]
        return self.check(plans, replace=options.existing is ExistingPolicy.REPLACE, begun=begun)

    def contents(self, names: Collection[str]) -> Mapping[str, str]:
        contents = {}
        for name in self.present(names):
            each = self.overview(name)
            damaged = ", damaged" if each.problems else ""
            contents[name] = f"{StreamContent(each.last_seq, each.messages)}{damaged}"
        return contents

    def present(self, names: Collection[str]) -> list[str]:
        return [name for name in names if self.directory(name).exists()]

    def overview(self, stream: str) -> StreamOverview:
        """Reads what a stream holds, as a server would recover it."""
        if stream not in self._overviews:
            stored = StoredStream(self.directory(stream), self.account)
            self._overviews[stream] = stream_overview(stored)
        return self._overviews[stream]

    def check(
        self,
        streams: Iterable[StreamPlan],
        *,
        replace: bool = False,
        begun: Collection[str] = (),
        quiet: float = QUIET_SECONDS,
    ) -> list[Remark]:
        """Returns problems, which `place` would refuse, and warnings; read-only.

        `replace`: existing streams are to be replaced; `begun`: streams that an earlier run may have placed;
        `quiet`: seconds without any write in the store.
        """
        streams = list(streams)
        notes = [*self._server_notes(quiet), *self._store_notes(streams)]
        for stream in streams:
            notes += self._stream_notes(stream, replace=replace or stream.name in begun)
        return notes

    def place(
        self, stream: PreparedStream, options: ApplyOptions = DEFAULTS, watch: JournalObserver = UNWATCHED
    ) -> PlacedStream:
        """Places a stream; with `replace`, a different stream moves to the account's directory."""
        target = self.directory(stream.name)
        for note in self.check([stream.plan], replace=True, quiet=0):
            if note.level is RemarkLevel.PROBLEM:
                raise RefusedError(f"{note.about}: {note.text}", note.remedy)
        kept = tidy(target)
        if target.exists():
            with watch.stage(stream.name, StreamStage.PROVE, stream.source.count) as progress:
                proof = self.prove(stream, progress)
            if not proof.findings:
                return PlacedStream(stream.name, target, stream.measure(), present=True, replaced=kept)
            if options.existing is not ExistingPolicy.REPLACE:
                what = f"stream {stream.name} already exists ({target}) and is different"
                raise RefusedError(f"{what}: {proof.findings[0].detail}", _REPLACE)
        owner = Ownership.around(self._streams, self._layout.root)
        archive = stream.archive(stream.plan.config)
        with parents(self._streams, owner), arriving(target, owner) as (content, replaced):
            with watch.stage(stream.name, StreamStage.LOAD, stream.source.count) as progress:
                fill(content, archive.members(stream.batches(progress), stream.entries, stream.source.last), owner)
            for note in self._server_notes(0):
                if note.level is RemarkLevel.PROBLEM:  # a server was started meanwhile
                    raise RefusedError(f"{note.about}: {note.text}; nothing was placed", note.remedy)
        return PlacedStream(stream.name, target, archive.state, replaced=replaced or kept)

    def prove(self, stream: PreparedStream, progress: Progress | None = None) -> Proof:
        return prove_stream_directory(self.directory(stream.name), stream, progress)

    def _server_notes(self, quiet: float) -> Iterator[Remark]:
        if not quiet and time.monotonic() - self._unused_at < RECHECK_SECONDS:
            return
        used = False
        for sign in find_server(self._layout.root, quiet=quiet):
            used = True
            yield Remark(
                RemarkLevel.WARNING if self._force else RemarkLevel.PROBLEM, str(self.path), f"is in use: {sign}", _STOP
            )
        if not used:
            self._unused_at = time.monotonic()

    def _store_notes(self, streams: list[StreamPlan]) -> Iterator[Remark]:
        about, layout = str(self.path), self._layout
        if layout.raft:
            yield Remark(
                RemarkLevel.PROBLEM,
                about,
                f"belongs to a server of a cluster ({layout.raft}), where streams also need Raft state",
                "restore into the running cluster instead: --to jetstream --server URL",
            )
        if layout.key:
            yield Remark(
                RemarkLevel.PROBLEM,
                about,
                f"is encrypted ({layout.key})",
                "restore into the running server instead, which encrypts: --to jetstream --server URL",
            )
        if self.account == SYSTEM_ACCOUNT or name_problem(self.account.replace(".", "")) or self.account in (".", ".."):
            yield Remark(
                RemarkLevel.PROBLEM, about, f"{self.account!r} cannot be an account with streams", "name another one"
            )
        elif self.account not in layout.accounts and (layout.accounts or self.account != GLOBAL_ACCOUNT):
            known = ", ".join(layout.accounts) or "none"
            yield Remark(
                RemarkLevel.WARNING,
                about,
                f"account {self.account} has no directory there yet (existing ones: {known}); a server without this "
                "account skips its streams",
                "check the name of the account",
            )
        owner = Ownership.around(self._streams, self._layout.root)
        if not owner.possible:
            yield Remark(
                RemarkLevel.PROBLEM,
                about,
                f"belongs to user {owner.user}; this process cannot create files for that user",
                f"run it as that user, for example with sudo -u '#{owner.user}'",
            )
        try:
            check_room(self._layout.root, sum(map(estimated_bytes, streams)))
        except RefusedError as problem:
            yield Remark(RemarkLevel.PROBLEM, about, problem.message, problem.remedy)

    def _stream_notes(self, stream: StreamPlan, *, replace: bool) -> Iterator[Remark]:
        if problem := name_problem(stream.name):
            yield Remark(RemarkLevel.PROBLEM, stream.name, problem, "change the name in the plan")
            return
        present = self._streams / stream.name
        if not replace and present.exists():
            yield Remark(RemarkLevel.PROBLEM, stream.name, f"already exists ({present})", _REPLACE)
        for subject in stream.subjects:
            for other in self._layout.streams.values():
                found = next((theirs for theirs in other.subjects if overlap(subject, theirs)), None)
                if found is not None and other.name != stream.name:
                    yield Remark(
                        RemarkLevel.PROBLEM,
                        stream.name,
                        f"subject {subject} overlaps {found} of the existing stream {other.name}",
                        "give the channel another subject in the plan, or remove the other stream",
                    )
