"""The journal of a migration: what was begun and what is finished, beside the plan file.

One line of json for each step, appended and synced before the next step is begun, so that a run that was killed at any
point is continued by the next one. The journal is a memory, not the truth: what a stream holds is asked of the server,
the journal says whether we made it.

    {"event": "begin",  "plan": <digest of the streams of the plan>, "target": "...", "at": "..."}
    {"event": "stream", "stream": "orders", "state": "started" | "loaded" | "proven", ...}
"""

from __future__ import annotations

import enum
import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stantools.errors import RefusedError, StantoolsError, StoreUnreadableError
from stantools.inspection.findings import Finding
from stantools.store.durable import fsync_directory, write_all, writing

if TYPE_CHECKING:
    from stantools.migration.proof.stream import Proof


class Outcome(enum.StrEnum):
    """What became of a stream."""

    MIGRATED = "migrated"
    REPLACED = "replaced"
    CONTINUED = "continued"  #: a killed run had published a part of it
    APPENDED = "appended"
    WRITTEN = "written"
    PLACED = "placed"
    COMPLETE = "complete before"
    COMPARED = "compared"
    FAILED = "failed"
    NOT_BEGUN = "not begun"  #: the server is full, or gone


@dataclass
class StreamResult:
    """What became of one stream."""

    stream: str  #: its name
    outcome: Outcome = Outcome.FAILED  #: what was done
    messages: int = 0  #: messages that it holds
    bytes: int = 0  #: their size as the server counts
    seconds: float = 0.0  #: how long loading took, 0 if nothing was loaded
    proven: int = 0  #: messages that were compared one by one
    prove_seconds: float = 0.0  #: how long that took
    findings: list[Finding] = field(default_factory=list)  #: differences that were found
    error: StantoolsError | None = None  #: why it failed

    def compared(self, proof: Proof) -> None:
        """Takes over what a comparison came to."""
        self.findings, self.proven, self.prove_seconds = proof.findings, proof.messages, proof.seconds

    def failed(self, problem: StantoolsError) -> None:
        """Takes note of why it failed."""
        self.outcome, self.error = Outcome.FAILED, problem

    @property
    def good(self) -> bool:
        """It is what it should be."""
        return self.error is None and not self.findings and self.outcome not in (Outcome.FAILED, Outcome.NOT_BEGUN)


class Stage(enum.StrEnum):
    """What is being done with a stream."""

    LOAD = "load"
    PROVE = "prove"
    COMPARE = "compare"  #: without a plan


class Watch:
    """Learns of every step, perhaps from several threads. This one does nothing: nobody is looking."""

    def begin(self, stream: str, stage: Stage, messages: int) -> None:
        """A stage of a stream begins, with so many messages to go."""

    def advance(self, stream: str, messages: int) -> None:
        """So many more of them are done; a negative number when a part has to be done again."""

    def end(self, stream: str) -> None:
        """The stage is over."""

    def note(self, text: str) -> None:
        """Something happened that whoever waits should know."""

    @contextmanager
    def stage(self, stream: str, stage: Stage, messages: int) -> Iterator[StageProgress]:
        """A stage of a stream, which lasts as long as the block; yields what counts the messages that are done."""
        self.begin(stream, stage, messages)
        try:
            yield StageProgress(self, stream)
        finally:
            self.end(stream)


#: Nobody is looking.
UNWATCHED = Watch()


class StageProgress:
    """Reports to a watch how many messages of a stream are done, and remembers it, so that it can be taken back.

    Args:
        watch: What learns of it.
        stream: The stream's name.
    """

    def __init__(self, watch: Watch, stream: str) -> None:
        self._watch = watch
        self._stream = stream
        self._messages = 0

    def __call__(self, messages: int) -> None:
        """So many more messages are done."""
        self._messages += messages
        self._watch.advance(self._stream, messages)

    def take_back(self) -> None:
        """What was done has to be done again."""
        self._watch.advance(self._stream, -self._messages)
        self._messages = 0


SUFFIX = ".journal"


class StreamState(enum.StrEnum):
    """How far a stream is."""

    STARTED = "started"  #: loading has begun; what the target holds of it may be nothing, a part, or all
    LOADED = "loaded"  #: the target holds what the plan says, by its own numbers
    PROVEN = "proven"  #: every message and consumer was compared


class Steps:
    """The steps that were taken with streams, in memory: for who works on one of them somewhere else.

    Args:
        streams: What a journal says last of each stream.
    """

    def __init__(self, streams: Mapping[str, dict[str, Any]] | None = None) -> None:
        self._streams: dict[str, dict[str, Any]] = dict(streams or {})
        #: The entries of the steps that were taken since, for `Journal.take_over`.
        self.taken: list[dict[str, Any]] = []

    def state(self, stream: str) -> StreamState | None:
        """Returns how far a stream is; None if nothing was begun."""
        entry = self._streams.get(stream)
        return StreamState(entry["state"]) if entry else None

    def facts(self, stream: str) -> dict[str, Any]:
        """Returns what was noted with the last step of a stream."""
        return self._streams.get(stream, {})

    def note(self, stream: str, state: StreamState, **facts: Any) -> None:
        """Remembers a step; it is durable when this returns. What does not change on the way is kept."""
        kept = {key: value for key, value in self.facts(stream).items() if key in ("way", "seen")}
        entry = {"event": "stream", "stream": stream, "state": state.value, **kept, **facts}
        self.take_over([entry])

    def forget(self, stream: str) -> None:
        """Remembers that a stream was taken away again."""
        self.take_over([{"event": "forget", "stream": stream}])

    def take_over(self, entries: Iterable[dict[str, Any]]) -> None:
        """Remembers steps, perhaps of somewhere else (`taken`); they are durable when this returns."""
        for entry in entries:
            self._append(entry)
            self._fold(entry)

    def _fold(self, entry: dict[str, Any]) -> None:
        """Takes an entry of a stream into account."""
        if entry["event"] == "forget":
            self._streams.pop(entry["stream"], None)
        else:
            self._streams[entry["stream"]] = entry

    def _append(self, entry: dict[str, Any]) -> None:
        self.taken.append(entry)


class Journal(Steps):
    """An open journal; a context manager. Only one run may have it open.

    Args:
        plan: The plan file; the journal lies beside it.
        digest: What identifies the content of the plan.
        target: Where the plan is applied, without secrets.

    Raises:
        RefusedError: Another run has it open, or it was written for another plan or target.
        StoreUnreadableError: It cannot be read, or is no journal.
        StoreUnwritableError: It cannot be written.
    """

    def __init__(self, plan: Path, digest: str, target: str) -> None:
        super().__init__()
        self.path = journal_path(plan)
        with writing(self.path):
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self.resumed = self._read(digest, target)
            if not self.resumed:
                self._append({"event": "begin", "plan": digest, "target": target})
                with writing(self.path):
                    fsync_directory(self.path.parent)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise RefusedError(
                f"{self.path}: another migration with this plan is running", "wait for it, or stop it first"
            ) from problem

    def _read(self, digest: str, target: str) -> bool:
        """Reads what earlier runs noted; True if there was anything."""
        data = b""
        while part := os.read(self._descriptor, 1 << 20):
            data += part
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            # A killed run left half a line: the step that it was to remember is looked at again.
            with writing(self.path):
                os.ftruncate(self._descriptor, whole)
        begun = False
        for number, line in enumerate(data[:whole].splitlines(), 1):
            entry = self._parse(line, number)
            if entry["event"] == "begin":
                self._check(entry, digest, target)
                begun = True
            elif not begun:
                raise self._no_journal(number, "its first line must begin a migration")
            else:
                self._fold(entry)
        return begun

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except ValueError as problem:
            raise self._no_journal(number, "it is no json") from problem
        event = entry.get("event") if isinstance(entry, dict) else None
        good = event == "begin" or (event in ("stream", "forget") and isinstance(entry.get("stream"), str))
        if not good or (event == "stream" and entry.get("state") not in tuple(StreamState)):
            raise self._no_journal(number, "it is none of the steps that a migration takes")
        return dict(entry)

    def _no_journal(self, number: int, reason: str) -> StoreUnreadableError:
        return StoreUnreadableError(
            f"{self.path}: line {number} is not of a migration's journal: {reason}",
            "move the file away; streams that are complete are recognised without it",
        )

    def _check(self, entry: dict[str, Any], digest: str, target: str) -> None:
        for name, now in (("plan", digest), ("target", target)):
            if entry.get(name) != now:
                what = "the plan was changed" if name == "plan" else f"it was for {entry.get(name)}, not for {now}"
                raise RefusedError(
                    f"{self.path}: belongs to another migration: {what}",
                    "finish that one first, or move the journal away to start over",
                )

    def _append(self, entry: dict[str, Any]) -> None:
        entry["at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        with writing(self.path):
            os.lseek(self._descriptor, 0, os.SEEK_END)
            write_all(self._descriptor, json.dumps(entry).encode() + b"\n")
            os.fsync(self._descriptor)


def remembered_streams(plan: Path) -> dict[str, dict[str, Any]]:
    """Returns what a journal says last of each stream, without opening it for work; empty if there is none."""
    try:
        lines = journal_path(plan).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise StoreUnreadableError(f"{journal_path(plan)}: cannot be read: {problem.strerror}") from problem
    streams: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            name, event = entry["stream"], entry["event"]
        except (ValueError, KeyError, TypeError):
            continue  # opening the journal says what is wrong with it
        if event == "forget":
            streams.pop(str(name), None)
        else:
            streams[str(name)] = entry
    return streams


def journal_path(plan: Path) -> Path:
    """Returns where the journal of a plan lies."""
    return plan.with_name(plan.name + SUFFIX)
