"""The exceptions of stantools, each with its exit code on the command line.

Damage in a store is never an exception: it is a finding (see `stantools.inspection.findings`). An exception means
that the work cannot go on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ExitCode(enum.IntEnum):
    """Exit codes of every command."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    LOSS = 5
    INTERRUPTED = 130


class StantoolsError(Exception):
    """Something that stops the work.

    Args:
        message: What is wrong, naming the file and the offset where there is one, and what was expected.
        remedy: What the user can do next.
    """

    exit_code = ExitCode.UNREACHABLE
    #: Whether it may well be over at the next attempt: a connection broke, a server restarts.
    retriable = False

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class UsageError(StantoolsError):
    """The request itself makes no sense, for example a range that ends before it begins."""

    exit_code = ExitCode.USAGE


class StoreUnreadableError(StantoolsError):
    """A path is not a store, or cannot be read."""


class NotPermittedError(StoreUnreadableError):
    """This user may not read a file, which says nothing about what is in it.

    COMMAND in its remedy stands for what the user asked `stantools` for.

    Args:
        message: The files, and who may read them.
        remedy: The command as a user who may.
        optional: The rest makes sense without these files.
    """

    def __init__(self, message: str, remedy: str = "", *, optional: bool = False) -> None:
        super().__init__(message, remedy)
        self.optional = optional


class NotAStoreError(StoreUnreadableError):
    """A path is something else than the verb takes.

    Args:
        message: What it is.
        remedy: What works with it.
        instead: The path that was meant, if one can be told.
    """

    def __init__(self, message: str, remedy: str = "", instead: Path | None = None) -> None:
        super().__init__(message, remedy)
        self.instead = instead


@contextmanager
def readable(path: Path | str, remedy: str = "") -> Iterator[None]:
    """Turns every `OSError` of the block into a `StoreUnreadableError`, with the remedy."""
    try:
        yield
    except OSError as error:
        raise StoreUnreadableError(f"{error.filename or path}: cannot be read: {error.strerror}", remedy) from error


class StoreChangedError(StantoolsError):
    """A file got shorter, or its disk failed, while it was read: what was found up to then does not count.

    No `StoreUnreadableError`, which many turn into a finding about a file and go on.
    """


class StoreUnwritableError(StantoolsError):
    """Output cannot be written: no permission, no space, or it already exists."""


class RefusedError(StantoolsError):
    """Doing it could lose data or disturb a running server; the message says how to insist."""

    exit_code = ExitCode.REFUSED


class InterruptionError(StantoolsError):
    """Ctrl-C, where more is to be said than that: what is there, and how to go on."""

    exit_code = ExitCode.INTERRUPTED
