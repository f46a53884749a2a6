"""The state file of a replay, which lets `--resume` continue it after any kind of end.

    {"schema": 1, "kind": "stantools-replay", "identity": {"store": …, "to": …, …}, "run": "…", "selection": {…},
     "channels": {"orders": [42, 1600000000000000000], …}, "streams": {"ORDERS": 57}}

It is replaced atomically by a rename, and locked while open. A position means confirmation by the target;
confirmations after the last save are lost when the process is killed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stantools.errors import RefusedError, StoreUnreadableError
from stantools.migration.replay.subjects import shown
from stantools.store.durable import fsync_directory, write_all, writing


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    sequence: int  #: sequence of its last confirmed message
    timestamp: int  #: timestamp of that message, nanoseconds since 1970, to recognise the store


@dataclass(frozen=True, slots=True)
class _ReplayRun:
    first: int
    channel: bytes
    sequences: list[int]
    timestamps: list[int]


class Ledger:
    """Records sent and confirmed messages of one replay. Messages are numbered in the order of sending.

    `positions` of the channels come from an earlier run.
    """

    def __init__(self, positions: Mapping[bytes, ReplayPosition] | None = None) -> None:
        self._positions = dict(positions or {})
        self._runs: deque[_ReplayRun] = deque()
        self._ahead: set[int] = set()
        self._next = 0
        self._low = 0  # lowest number that may be unconfirmed
        #: messages confirmed without a gap before them
        self.confirmed = 0

    @property
    def next(self) -> int:
        return self._next

    @property
    def low(self) -> int:
        """The lowest unconfirmed number."""
        return self._low

    @property
    def outstanding(self) -> int:
        """Sent but unconfirmed messages."""
        return self._next - self._low - len(self._ahead)

    def add(self, channel: bytes, sequences: list[int], timestamps: list[int]) -> int:
        """Adds messages of one channel that are being sent; returns the number of the first. The lists are kept."""
        number = self._next
        self._runs.append(_ReplayRun(number, channel, sequences, timestamps))
        self._next += len(sequences)
        return number

    def withdraw(self, number: int) -> None:
        """Removes messages from this number on, which were not sent after all."""
        while self._runs and self._runs[-1].first >= number:
            self._runs.pop()
        if self._runs and number < self._next:
            run = self._runs.pop()
            rows = number - run.first
            self._runs.append(_ReplayRun(run.first, run.channel, run.sequences[:rows], run.timestamps[:rows]))
        self._next = min(self._next, number)

    def confirm(self, number: int) -> bool:
        """Records one confirmation; returns whether the message was unconfirmed."""
        if not self._low <= number < self._next or number in self._ahead:
            return False
        if number == self._low:
            self._advance(number + 1)
        else:
            self._ahead.add(number)
        return True

    def confirm_below(self, number: int) -> None:
        """Records the confirmation of all messages below a number."""
        number = min(number, self._next)
        if number > self._low:
            self._ahead = {each for each in self._ahead if each >= number}
            self._advance(number)

    def _advance(self, low: int) -> None:
        while low in self._ahead:
            self._ahead.remove(low)
            low += 1
        self.confirmed += low - self._low
        self._low = low

    def where(self, number: int) -> tuple[bytes, int]:
        """Returns channel and sequence of a message after `positions`."""
        for run in self._runs:
            if run.first <= number < run.first + len(run.sequences):
                return run.channel, run.sequences[number - run.first]
        raise KeyError(number)

    def positions(self) -> dict[bytes, ReplayPosition]:
        """Returns the position of every channel, before its first unconfirmed message."""
        while self._runs and self._runs[0].first < self._low:
            run = self._runs[0]
            row = min(self._low - run.first, len(run.sequences)) - 1
            self._positions[run.channel] = ReplayPosition(run.sequences[row], run.timestamps[row])
            if row < len(run.sequences) - 1:
                break
            self._runs.popleft()
        return dict(self._positions)

    def set_position(self, channel: bytes, position: ReplayPosition | None) -> None:
        """Corrects the position of a channel, None for its beginning; all messages must be confirmed."""
        self.positions()
        if position is None:
            self._positions.pop(channel, None)
        else:
            self._positions[channel] = position

    def forget_outstanding(self) -> int:
        """Drops and counts messages after `positions`: they will be sent again, with new numbers."""
        self.positions()
        dropped = self._next - self._low
        self._runs.clear()
        self._ahead.clear()
        self._low = self._next
        return dropped


_KIND = "stantools-replay"
_SCHEMA = 1
_LARGEST = 1 << 28


@dataclass
class ReplayState:
    identity: dict[str, Any]  #: identity of the replay: store, target, kind, channels, rules
    selection: dict[str, Any] = field(default_factory=dict)  #: selected messages, with absolute sequences
    #: unique text of this replay in every message, by which a target recognises them
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    channels: dict[bytes, ReplayPosition] = field(default_factory=dict)  #: confirmed position of each channel
    #: JetStream only: stream -> sequence of its last message before any unconfirmed one
    streams: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        document = {
            "schema": _SCHEMA,
            "kind": _KIND,
            "identity": self.identity,
            "selection": self.selection,
            "run": self.run,
            "channels": {shown(name): [each.sequence, each.timestamp] for name, each in self.channels.items()},
            "streams": self.streams,
        }
        return json.dumps(document, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Reads the content of a file; raises ValueError for other files."""
        document = json.loads(content)
        if not isinstance(document, dict) or document.get("kind") != _KIND:
            raise ValueError("it is not the state of a replay")
        if document.get("schema") != _SCHEMA:
            raise ValueError(f"it has schema {document.get('schema')!r}, expected {_SCHEMA}")
        channels = {
            name.encode("utf-8", "surrogateescape"): ReplayPosition(_integer(sequence), _integer(timestamp))
            for name, (sequence, timestamp) in _table(document, "channels").items()
        }
        streams = {name: _integer(sequence) for name, sequence in _table(document, "streams").items()}
        run = document.get("run")
        if not isinstance(run, str) or not run.isalnum() or not run.isascii():
            raise ValueError("`run` is missing")
        selection = _table(document, "selection")
        return cls(_table(document, "identity"), selection, run, channels, streams)


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"its {name} are missing")
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def default_path(identity: dict[str, Any]) -> Path:
    """Returns the default path of the state: equal for equal commands."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    return Path(f"stantools-replay-{digest}.json")


class ReplayStateFile:
    """An open, locked state file; a context manager.

    With `resume` it continues an existing file, otherwise the file must not exist. Raises RefusedError if it belongs
    to another or unfinished replay, is in use, or does not exist.
    """

    def __init__(self, path: Path, identity: dict[str, Any], *, resume: bool) -> None:
        self.path = path
        self.state = ReplayState(identity)
        self._written = b""
        if resume:
            self._descriptor = self._open()
            try:
                self._read(identity)
            except BaseException:
                os.close(self._descriptor)
                raise
        else:
            self._descriptor = self._create()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def save(self) -> None:
        """Writes the state if it has changed; on an error the old content stays."""
        content = self.state.encode()
        if content == self._written:
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with writing(self.path):
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                write_all(descriptor, content)
                os.fsync(descriptor)
                temporary.replace(self.path)
            except BaseException:
                os.close(descriptor)
                temporary.unlink(missing_ok=True)
                raise
            # The new file was locked before the rename, so that the lock has no gap.
            os.close(self._descriptor)
            self._descriptor = descriptor
            fsync_directory(self.path.parent)
        self._written = content

    def remove(self) -> None:
        with writing(self.path):
            self.path.unlink(missing_ok=True)
            fsync_directory(self.path.parent)

    def _create(self) -> int:
        with writing(self.path):
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError as problem:
                raise RefusedError(
                    f"{self.path}: already exists, from an unfinished replay",
                    "continue it with --resume; to start over, remove the file or name another one with --state",
                ) from problem
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def _open(self) -> int:
        while True:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError as problem:
                raise RefusedError(
                    f"{self.path}: this state file does not exist, so that no replay can be resumed",
                    "if that replay finished, or was another command, remove --resume; else name its file with --state",
                ) from problem
            except OSError as problem:
                raise StoreUnreadableError(f"{self.path}: cannot be read: {problem.strerror}") from problem
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return descriptor
            except OSError as problem:
                os.close(descriptor)
                if problem.errno in (errno.EAGAIN, errno.EACCES):
                    raise RefusedError(
                        f"{self.path}: another replay is using it", "wait until it has ended, or stop it"
                    ) from problem
                if problem.errno != errno.ENOENT:
                    raise StoreUnreadableError(f"{self.path}: cannot be read: {problem.strerror}") from problem
            else:
                os.close(descriptor)  # another run has replaced the file meanwhile

    def _read(self, identity: dict[str, Any]) -> None:
        try:
            content = os.pread(self._descriptor, _LARGEST, 0)
            # A run killed before its first save leaves an empty file.
            if content:
                self.state = ReplayState.decode(content)
        except (OSError, ValueError, TypeError, AttributeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else problem
            raise StoreUnreadableError(
                f"{self.path}: not a state file of stantools replay: {reason}", "name the right file with --state"
            ) from problem
        different = [name for name in identity if self.state.identity.get(name) != identity[name]]
        if different:
            name = different[0]
            raise RefusedError(
                f"{self.path}: belongs to another replay: its {name} is {self.state.identity.get(name)!r}, "
                f"this one's is {identity[name]!r}",
                "repeat the original command with --resume; or remove --resume and name another --state",
            )
        self._written = content
