"""The journal of a migration: begun and finished steps, beside the plan file.

Each step is one line of json, appended and synced before the next step, so that the next run continues after a kill
at any point. The journal is not the truth: the content of a stream comes from the server; the journal tells whether
this migration made it.

    {"event": "begin",  "plan": <digest of the streams of the plan>, "target": "...", "at": "..."}
    {"event": "stream", "stream": "orders", "state": "started" | "loaded" | "proven", ...}
"""

from __future__ import annotations

import enum
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stantools.errors import RefusedError, StantoolsError, StoreUnreadableError
from stantools.inspection.findings import Finding
from stantools.notation import format_uptime
from stantools.store.durable import fsync_directory, write_all, writing

if TYPE_CHECKING:
    from stantools.migration.proof.stream_proof import Proof


class StreamOutcome(enum.StrEnum):
    MIGRATED = "migrated"
    REPLACED = "replaced"
    CONTINUED = "continued"  #: a killed run had published a part
    APPENDED = "appended"
    WRITTEN = "written"
    PLACED = "placed"
    COMPLETE = "complete before"
    COMPARED = "compared"
    FAILED = "failed"
    FOLLOWED = "followed"  #: following was ended; the next run continues
    NOT_BEGUN = "not begun"  #: the server is full or lost


@dataclass
class StreamResult:
    stream: str
    outcome: StreamOutcome = StreamOutcome.FAILED
    messages: int = 0  #: messages in the stream
    bytes: int = 0  #: size counted by the server
    seconds: float = 0.0  #: seconds of loading, 0 if nothing was loaded
    proven: int = 0  #: messages compared one by one
    prove_seconds: float = 0.0  #: seconds of comparing
    findings: list[Finding] = field(default_factory=list)
    error: StantoolsError | None = None  #: cause of the failure

    def compared(self, proof: Proof) -> None:
        self.findings, self.proven, self.prove_seconds = proof.findings, proof.messages, proof.seconds

    def failed(self, problem: StantoolsError) -> None:
        self.outcome, self.error = StreamOutcome.FAILED, problem

    @property
    def good(self) -> bool:
        """The stream is as planned."""
        return (
            self.error is None
            and not self.findings
            and self.outcome not in (StreamOutcome.FAILED, StreamOutcome.NOT_BEGUN)
        )


class StreamStage(enum.StrEnum):
    LOAD = "load"
    PROVE = "prove"
    COMPARE = "compare"  #: comparison without a plan


@dataclass(frozen=True)
class FollowState:
    """How far the streams of a store that is followed are."""

    channels: int
    behind: int  #: messages of the store that are not in the streams yet
    last: float | None  #: time of the last message, in seconds since 1970; None without messages
    carried: int  #: messages published since the streams were loaded
    ending: bool  #: the streams are finished when the server has stopped

    def describe(self, now: float) -> str:
        """Returns the state in words at a time in seconds since 1970."""
        text = f"{self.behind:,} behind"
        if not self.behind:
            text = f"in step: {text}"
        return text if self.last is None else f"{text}, last message {_age_text(max(now - self.last, 0))} ago"

    def as_json(self, now: float) -> dict[str, Any]:
        age = None if self.last is None else round(max(now - self.last, 0), 1)
        return {"behind": self.behind, "last_message_seconds": age, "carried": self.carried}


def _age_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return "".join(re.findall(r"\d+[a-z]", format_uptime(round(seconds) * 10**9))[:2])  # seconds say nothing after days


class JournalObserver:
    """Receives the progress of every step, possibly from several threads. This one ignores it."""

    def begin(self, stream: str, stage: StreamStage, messages: int) -> None:
        """A stage of a stream begins; `messages` are to be processed."""

    def advance(self, stream: str, messages: int) -> None:
        """Messages were processed; a negative number takes back a part that has to be repeated."""

    def end(self, stream: str) -> None: ...

    def note(self, text: str) -> None:
        """Shows a message to the user."""

    def followed(self, state: FollowState) -> None:
        """A store was read once more, and its messages were published."""

    @contextmanager
    def stage(self, stream: str, stage: StreamStage, messages: int) -> Iterator[StageProgress]:
        """A stage of a stream that lasts as long as the block; yields a counter of processed messages."""
        self.begin(stream, stage, messages)
        try:
            yield StageProgress(self, stream)
        finally:
            self.end(stream)


UNWATCHED = JournalObserver()


class StageProgress:
    """Reports processed messages of a stream to a watch, and can take them back."""

    def __init__(self, watch: JournalObserver, stream: str) -> None:
        self._watch = watch
        self._stream = stream
        self._messages = 0

    def __call__(self, messages: int) -> None:
        self._messages += messages
        self._watch.advance(self._stream, messages)

    def take_back(self) -> None:
        """Takes back all reported messages, which have to be processed again."""
        self._watch.advance(self._stream, -self._messages)
        self._messages = 0


SUFFIX = ".journal"
#: beginning of the digest in the journal of a followed store; its path follows
FOLLOWS = "follow "


class StreamState(enum.StrEnum):
    STARTED = "started"  #: loading has begun; the target may hold nothing, a part, or all
    LOADED = "loaded"  #: by its counts, the target holds the planned messages
    PROVEN = "proven"  #: every message and consumer was compared


class StepLog:
    """The steps of streams, in memory only: for work on one stream in another process.

    `streams` is the last journal entry of each stream.
    """

    def __init__(self, streams: Mapping[str, dict[str, Any]] | None = None) -> None:
        self.streams: dict[str, dict[str, Any]] = dict(streams or {})
        #: entries of the steps since then, for `Journal.take_over`
        self.taken: list[dict[str, Any]] = []

    def state(self, stream: str) -> StreamState | None:
        """Returns the last step of a stream, None without any."""
        entry = self.streams.get(stream)
        return StreamState(entry["state"]) if entry else None

    def facts(self, stream: str) -> dict[str, Any]:
        """Returns the facts recorded with the last step of a stream."""
        return self.streams.get(stream, {})

    def note(self, stream: str, state: StreamState, **facts: Any) -> None:
        """Records a step durably; facts of earlier steps are kept unless given again."""
        kept = {key: value for key, value in self.facts(stream).items() if key in ("way", "seen")}
        entry = {"event": "stream", "stream": stream, "state": state.value, **kept, **facts}
        self.take_over([entry])

    def forget(self, stream: str) -> None:
        self.take_over([{"event": "forget", "stream": stream}])

    def take_over(self, entries: Iterable[dict[str, Any]]) -> None:
        """Records steps, possibly of another process (`taken`), durably."""
        for entry in entries:
            self._append(entry)
            self.fold(entry)

    def fold(self, entry: dict[str, Any]) -> None:
        """Applies an entry to the state of its stream."""
        if entry["event"] == "forget":
            self.streams.pop(entry["stream"], None)
        else:
            self.streams[entry["stream"]] = entry

    def _append(self, entry: dict[str, Any]) -> None:
        self.taken.append(entry)


class Journal(StepLog):
    """An open journal; a context manager. Only one run may have it open.

    With `read_only` it is only checked, and must exist.

    `plan` is the plan file, beside which the journal lies; `digest` identifies the content of the plan; `target` is
    without secrets. Raises RefusedError if another run has it open, or it belongs to another plan or target.
    """

    def __init__(self, plan: Path, digest: str, target: str, *, read_only: bool = False) -> None:
        super().__init__()
        self.path = journal_path(plan)
        self._read_only = read_only
        with writing(self.path):
            flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
            self._descriptor = os.open(self.path, flags | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self.resumed = self._read(digest, target)
            if not self.resumed and not read_only:
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
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if self._read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise RefusedError(
                f"{self.path}: another migration with this plan is running", "wait until it has ended, or stop it first"
            ) from problem

    def _read(self, digest: str, target: str) -> bool:
        """Reads the entries of earlier runs; returns whether there are any."""
        data = b""
        while part := os.read(self._descriptor, 1 << 20):
            data += part
        whole = data.rfind(b"\n") + 1
        if whole < len(data) and not self._read_only:
            # A killed run left half a line: its step is checked again on the server.
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
                self.fold(entry)
        return begun

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except ValueError as problem:
            raise self._no_journal(number, "it is not json") from problem
        event = entry.get("event") if isinstance(entry, dict) else None
        good = event == "begin" or (event in ("stream", "forget") and isinstance(entry.get("stream"), str))
        if not good or (event == "stream" and entry.get("state") not in tuple(StreamState)):
            raise self._no_journal(number, "it is not a step of a migration")
        return dict(entry)

    def _no_journal(self, number: int, reason: str) -> StoreUnreadableError:
        return StoreUnreadableError(
            f"{self.path}: line {number} does not belong to a migration's journal: {reason}",
            "move the file aside; complete streams are recognised without it",
        )

    def _check(self, entry: dict[str, Any], digest: str, target: str) -> None:
        for name, now in (("plan", digest), ("target", target)):
            if entry.get(name) != now:
                what = "the plan was changed" if name == "plan" else f"it was for {entry.get(name)}, not for {now}"
                raise RefusedError(
                    f"{self.path}: belongs to another migration: {what}",
                    "choose another plan file with --plan, or move the journal aside to start over",
                )

    def _append(self, entry: dict[str, Any]) -> None:
        entry["at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        with writing(self.path):
            os.lseek(self._descriptor, 0, os.SEEK_END)
            write_all(self._descriptor, json.dumps(entry).encode() + b"\n")
            os.fsync(self._descriptor)


def check_journal(plan: Path, digest: str, target: str) -> None:
    """Raises the error that opening the journal would raise; changes nothing."""
    path = journal_path(plan)
    if path.exists():
        with Journal(plan, digest, target, read_only=True):
            return
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RefusedError(f"{path}: cannot be written", "choose another file with --plan")


def digest_of_journal(plan: Path) -> str:
    """Returns the digest of the plan that a journal belongs to, "" without a journal."""
    try:
        with journal_path(plan).open("rb") as file:
            return str(json.loads(file.readline()).get("plan", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def remembered_streams(plan: Path) -> dict[str, dict[str, Any]]:
    """Returns the last journal entry of each stream, read-only; {} without a journal."""
    try:
        lines = journal_path(plan).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise StoreUnreadableError(f"{journal_path(plan)}: cannot be read: {problem.strerror}") from problem
    steps = StepLog()
    for line in lines:
        # Opening the journal reports other lines.
        with suppress(ValueError, KeyError, TypeError):
            steps.fold(json.loads(line))
    return steps.streams


def journal_path(plan: Path) -> Path:
    return plan.with_name(plan.name + SUFFIX)
