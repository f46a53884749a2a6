"""The exceptions of stantools, each with its exit code on the command line.

Damage in a store is never an exception but a finding (see `stantools.inspection.findings`). An exception means that
the work cannot continue.
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
    """An error that stops the work.

    Args:
        message: The problem and the expectation, with file and offset where they apply.
        remedy: What the user can do next.
    """

    exit_code = ExitCode.UNREACHABLE
    #: whether the same attempt may succeed later: a connection broke, a server restarts
    retriable = False

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class UsageError(StantoolsError):
    """The request makes no sense, for example a range that ends before it begins."""

    exit_code = ExitCode.USAGE


class StoreUnreadableError(StantoolsError):
    """A path is not a store, or cannot be read."""


class NotPermittedError(StoreUnreadableError):
    """The user has no permission to read a file; nothing is known about its content.

    `COMMAND` in the remedy stands for the user's own `stantools` command.

    Args:
        message: The files, and the users who may read them.
        remedy: How a user with permission runs the command.
        optional: The command is useful without these files.
    """

    def __init__(self, message: str, remedy: str = "", *, optional: bool = False) -> None:
        super().__init__(message, remedy)
        self.optional = optional


class NotAStoreError(StoreUnreadableError):
    """A path is of a different kind than the command takes; the message names it, the remedy a command that works."""


#: A file that was found cannot be opened.
STILL_THERE = "check that the file is there; while a server runs, files come and go: stop it, or read a copy"


@contextmanager
def readable(path: Path | str, remedy: str = "") -> Iterator[None]:
    """Turns every `OSError` of the block into a `StoreUnreadableError`, with the remedy."""
    try:
        yield
    except OSError as error:
        raise StoreUnreadableError(f"{error.filename or path}: cannot be read: {error.strerror}", remedy) from error


class StoreChangedError(StantoolsError):
    """A file became shorter, or its disk failed, during reading; results up to then are void.

    It is not a `StoreUnreadableError`, because many callers turn that into a finding about one file and continue.
    """


class StoreUnwritableError(StantoolsError):
    """Output cannot be written: no permission, no space, or it already exists."""


class RefusedError(StantoolsError):
    """The operation could lose data or disturb a running server; the message names the option that forces it."""

    exit_code = ExitCode.REFUSED


class InterruptionError(StantoolsError):
    """Ctrl-C; the message names the completed part and the way to continue."""

    exit_code = ExitCode.INTERRUPTED
