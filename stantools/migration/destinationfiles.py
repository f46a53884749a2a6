"""Targets without a server: a directory of backups, and the store directory of a stopped nats-server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from stantools.errors import StantoolsError
from stantools.migration.apply import ApplyOptions, Existing
from stantools.migration.archive.writer import ArchiveState
from stantools.migration.destination import room_problems
from stantools.migration.journal import Steps, StreamState
from stantools.migration.offline import backup_directory, prove_backup, write_backup
from stantools.migration.offlineproof import prove_stream_directory
from stantools.migration.plan.model import Level, Note, TargetKind, TargetRef
from stantools.migration.prepared import PreparedStream
from stantools.migration.proof.stream import Proof
from stantools.migration.results import Outcome, StreamResult
from stantools.migration.storedir import StoreDirectory
from stantools.migration.watch import Stage, Watch


class BackupDestination:
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

    def apply(
        self, streams: Sequence[PreparedStream], journal: Steps, options: ApplyOptions, watch: Watch
    ) -> list[StreamResult]:
        """Writes every backup that is not there yet, and reads it again."""

        def load(stream: PreparedStream) -> tuple[ArchiveState, Outcome]:
            result = write_backup(self._out, stream, compression=options.compression, watch=watch)
            return result.state, Outcome.COMPLETE if result.present else Outcome.WRITTEN

        return _apply(streams, journal, options, watch, load, self._prove)

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: Watch, parallel: int
    ) -> list[StreamResult]:
        """Reads every backup and compares it with the store."""
        return _verify(streams, watch, parallel, self._prove)

    def _prove(self, stream: PreparedStream, watch: Watch) -> Proof:
        return prove_backup(backup_directory(self._out, stream.name), stream, watch)


class StoreDestination:
    """The store directory of a stopped nats-server.

    Args:
        path: What the server has as `store_dir`.
        account: The account that the streams go to.
        force: Go on although a server seems to use it.
    """

    def __init__(self, path: Path, account: str, *, force: bool = False) -> None:
        self._store = StoreDirectory(path, account, force=force)

    def reference(self) -> TargetRef:
        """Returns the directory."""
        return TargetRef(TargetKind.STORE, (str(self._store.path),))

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Note]:
        """Looks for a server that is running, for what is there, and for what a server would not accept."""
        plans = [stream.plan for stream in streams]
        return self._store.check(plans, replace=options.existing is Existing.REPLACE, begun=begun)

    def apply(
        self, streams: Sequence[PreparedStream], journal: Steps, options: ApplyOptions, watch: Watch
    ) -> list[StreamResult]:
        """Places every stream that is not there yet, and reads it again."""

        def load(stream: PreparedStream) -> tuple[ArchiveState, Outcome]:
            placed = self._store.place(stream, replace=options.existing is Existing.REPLACE, watch=watch)
            done = Outcome.REPLACED if placed.replaced else Outcome.PLACED
            return placed.state, Outcome.COMPLETE if placed.present else done

        # One after the other: the directories above them may have to be made.
        return _apply(streams, journal, replace(options, parallel=1), watch, load, self._prove)

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: Watch, parallel: int
    ) -> list[StreamResult]:
        """Reads every stream's files and compares them with the store."""
        return _verify(streams, watch, parallel, self._prove)

    def _prove(self, stream: PreparedStream, watch: Watch) -> Proof:
        return prove_stream_directory(self._store.directory(stream.name), stream, watch)


_Load = Callable[[PreparedStream], tuple[ArchiveState, Outcome]]
_Prove = Callable[[PreparedStream, Watch], Proof]


def _apply(
    streams: Sequence[PreparedStream],
    journal: Steps,
    options: ApplyOptions,
    watch: Watch,
    load: _Load,
    prove: _Prove,
) -> list[StreamResult]:
    def one(stream: PreparedStream) -> StreamResult:
        result = StreamResult(stream.name)
        try:
            if journal.state(stream.name) is None:
                journal.note(stream.name, StreamState.STARTED)
            started = time.monotonic()
            state, result.outcome = load(stream)
            result.seconds = time.monotonic() - started
            result.messages, result.bytes = state.messages, state.bytes
            if options.prove and result.outcome is not Outcome.COMPLETE:
                _prove(result, stream, watch, prove)
            if result.good:
                journal.note(stream.name, StreamState.PROVEN if options.prove else StreamState.LOADED)
        except StantoolsError as problem:
            result.outcome, result.error = Outcome.FAILED, problem
        return result

    return _in_parallel(one, streams, options.parallel)


def _verify(streams: Sequence[PreparedStream], watch: Watch, parallel: int, prove: _Prove) -> list[StreamResult]:
    def one(stream: PreparedStream) -> StreamResult:
        result = StreamResult(stream.name, Outcome.COMPARED)
        try:
            _prove(result, stream, watch, prove)
            result.messages = result.proven
        except StantoolsError as problem:
            result.outcome, result.error = Outcome.FAILED, problem
        return result

    return _in_parallel(one, streams, parallel)


def _prove(result: StreamResult, stream: PreparedStream, watch: Watch, prove: _Prove) -> None:
    watch.begin(stream.name, Stage.PROVE, stream.source.count)
    try:
        proof = prove(stream, watch)
    finally:
        watch.end(stream.name)
    result.findings, result.proven, result.prove_seconds = proof.findings, proof.messages, proof.seconds
    result.bytes = result.bytes or proof.bytes


def _in_parallel(
    work: Callable[[PreparedStream], StreamResult], streams: Sequence[PreparedStream], parallel: int
) -> list[StreamResult]:
    """Works on a few streams at a time; what has not begun is dropped when the work is given up."""
    pool = ThreadPoolExecutor(parallel)
    try:
        return list(pool.map(work, streams))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
