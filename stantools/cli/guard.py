"""`stantools guard`: a server is started only if its start destroys nothing that is intact."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from stantools.cli import console
from stantools.cli.click_options import PathType, limit_options, options_of, reading_options, verb
from stantools.errors import (
    ExitCode,
    NotPermittedError,
    RefusedError,
    StoreChangedError,
    StoreUnreadableError,
    UsageError,
)
from stantools.escaping import escape, shell_word
from stantools.inspection.start_options import SERVER_VERSIONS, STREAM_VERSIONS, AnyStartOptions
from stantools.options import AGE, option

if TYPE_CHECKING:
    from stantools.inspection.start_check import StartCheck
    from stantools.sources.source import Source
    from stantools.store.read_options import ReadOptions

#: seconds between two attempts to end a check whose time is over
_REPEAT_SECONDS = 0.5
_ASK_SECONDS = 5.0
_VERSION = re.compile(r"\b(?:version |v)((\d+\.\d+)\.\d+)")
_TRUNCATE = "file_truncate_bad_eof"


@dataclass(frozen=True)
class GuardOptions:
    within: int = AGE.field(help="End the check after this time, and start the server.", default="60s")
    every_block: bool = option("Read also the blocks that the start itself does not read.", default=False)
    accept_limits: bool = option(
        "Start although max_age, another limit or the end of their lifetime removes messages: those of streams whose "
        "server was down for long.",
        default=False,
    )
    copy_to: str | None = option(
        "If the start destroys something, or that is unknown: copy DIR to this new place, then start. With a / at the "
        "end: to a new directory in it, named after DIR and the time.",
        metavar="PLACE",
    )


class _TimeIsUp(BaseException):
    """The check has taken longer than it may."""


@verb("guard", progress=False)
@click.argument("directory", type=PathType(), metavar="DIR")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@options_of(GuardOptions, "guard")
@options_of(AnyStartOptions, "server", limit_options(), without=("workers",))
@reading_options()
def command(
    directory: Path,
    command: tuple[str, ...],
    guard: GuardOptions,
    server: AnyStartOptions,
    read_options: ReadOptions,
) -> int:
    """Run COMMAND, a server on DIR, unless its start destroys intact messages. DIR is of JetStream or a file store.

    COMMAND replaces this process: process id, signals and exit code are the server's. If the start would destroy
    something intact, COMMAND is not run, and the reason is told. With --copy-to, DIR is copied first, and COMMAND is
    run. Without COMMAND, only the check is made, for an init container or ExecStartPre.

    A stream whose index.db the server trusts is not read by its start, and so is checked at once, with blocks up to 64
    MB in all. Other streams are read as the start reads them. Parts that were not checked within the time are named,
    and COMMAND is run: only a known loss keeps a server down. A missing or empty directory is a first start.

    The version is that of COMMAND if its name contains nats-server, as `COMMAND --version` tells; otherwise as for
    `stantools forecast`.

    Exit code 0: without COMMAND, a start destroys nothing. 2: COMMAND or DIR is none. 3: DIR may not be read, or the
    copy cannot be written. 4: the start would destroy something, or DIR is in use. In these cases COMMAND was not run;
    otherwise it is COMMAND's.
    """
    from stantools.sources.door import recognise

    program = _program(command)
    if not directory.is_dir() and ((url := recognise(directory).url) or directory.exists()):
        raise UsageError(
            f"{escape(url or str(directory))}: is no directory", "name the directory that the server opens"
        )
    if source := _opened(directory, read_options, guard.copy_to):
        _check_unused(source.place, source.path)
        _guard(source, guard, _with_version(server, source, program, command), command)
    if command:
        _become(program, command)
    return ExitCode.CLEAN


def _program(command: Sequence[str]) -> str:
    if not command:
        return ""
    if found := shutil.which(command[0]):
        return found
    raise UsageError(f"{escape(command[0])}: there is no such program", "name the server's program after --")


def _opened(directory: Path, read_options: ReadOptions, copy_to: str | None) -> Source | None:
    """Opens what the server will open; None if there is nothing yet, or, after a copy, nothing that is known here."""
    from stantools.errors import NotAStoreError
    from stantools.sources.directories import has_no_files
    from stantools.sources.door import open_source
    from stantools.sources.source import Capability, SourceRequest

    shown = escape(str(directory))
    if not directory.exists() or has_no_files(directory):
        _check_unused(directory, directory)
        console.note(f"guard: {shown} {'is empty' if directory.exists() else 'does not exist yet'}: a first start")
        return None
    try:
        source = open_source(directory, SourceRequest(read_options))
        source.require(Capability.FORECAST)
    except NotAStoreError as problem:
        console.warning(f"guard: nothing was checked: {problem.message}")
        if copy_to:
            _copy(directory, copy_to, ["what the start does to it is unknown"])
        return None
    return source


def _check_unused(place: Path, shown: Path) -> None:
    from stantools.store.locks import find_uses

    for use in find_uses(place, quiet=0):
        raise RefusedError(
            f"guard: {escape(str(shown))} is in use: {use.detail}; a second server would destroy it",
            "stop that server first",
        )


def _with_version(server: AnyStartOptions, source: Source, program: str, command: Sequence[str]) -> AnyStartOptions:
    """Fills in the version of the program that is to be started."""
    from dataclasses import replace

    if server.server_version or "nats-" not in Path(program).name:
        return server
    try:
        told = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_ASK_SECONDS, errors="replace", check=False
        )
    except (OSError, subprocess.SubprocessError):
        return server
    match = _VERSION.search(told.stdout + told.stderr)
    known = STREAM_VERSIONS if source.holds_streams else SERVER_VERSIONS
    if match and (found := match[2] if source.holds_streams else match[1]) in known:
        return replace(server, server_version=found)
    if match:
        console.warning(f"guard: version {match[1]} of {escape(command[0])} is not known here; others are predicted")
    return server


def _guard(source: Source, guard: GuardOptions, server: AnyStartOptions, command: Sequence[str]) -> None:
    """Returns if the server may be started; RefusedError otherwise."""
    from stantools.inspection.start_check import StartCheck

    check = StartCheck()
    check.unchecked += source.flaws
    _run_check(source, check, guard, server, command)
    shown = escape(str(source.path))
    for text in (*check.unread, *check.effects):
        console.note(f"guard: {text}")
    for text in check.unchecked:
        console.warning(f"guard: NOT CHECKED: {text}")
    known = [*check.destroys, *(() if guard.accept_limits else check.expires)]
    for text in check.expires if guard.accept_limits else ():
        console.note(f"guard: {text}")
    if guard.copy_to and (known or check.unchecked):
        _copy(source.place, guard.copy_to, known or check.unchecked)
    elif known:
        remedy = (
            f"`stantools doctor {shell_word(str(source.path))}` says what to do; --copy-to copies first, then starts"
        )
        if not check.destroys:
            remedy += "; --accept-limits lets the limits remove them"
        raise RefusedError(f"guard: {shown}: not started: {'; '.join(known)}", remedy)
    elif check.unchecked and command:
        console.warning("guard: the server is started, although not everything was checked")


def _run_check(
    source: Source, check: StartCheck, guard: GuardOptions, server: AnyStartOptions, command: Sequence[str]
) -> None:
    from stantools.inspection.start_check import StreamsStartCheck, check_store_start

    def progress(_size: int) -> None:
        """The time is watched by an alarm."""

    streams: StreamsStartCheck | None = None
    try:
        with _deadline(guard.within / 1e9):
            if source.holds_streams:
                from stantools.inspection.stream_forecast.versions import chosen_rules

                rules = chosen_rules(source.streams, server.server_version)
                streams = StreamsStartCheck(source.streams, source.path, rules, time.time_ns(), source.raft_groups)
                streams.run(check, progress, every_block=guard.every_block)
            elif source.datastore:
                from dataclasses import replace

                store, truncate = source.datastore, any(_TRUNCATE in each for each in command)
                options = server.server(store)
                versions = [server.server_version] if server.server_version else SERVER_VERSIONS
                servers = [replace(options, version=version) for version in versions]
                check_store_start(store, servers, check, progress, truncate=truncate)
            else:
                check.unchecked.append(f"{escape(str(source.path))} {source.found.sentence}")
    except _TimeIsUp:
        check.interrupted(streams.pending_names() if streams else ())
    except NotPermittedError:
        raise
    except StoreUnreadableError as problem:
        check.unchecked.append(problem.message)
    except StoreChangedError as problem:
        raise RefusedError(
            f"guard: {problem.message}: another program writes to {escape(str(source.path))}", "stop it first"
        ) from problem


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raises _TimeIsUp in the block when the time is over, again and again until it is handled."""
    end, over = time.monotonic() + seconds, False
    before = signal.getsignal(signal.SIGALRM)

    def ring(number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= end:
            if not (over or _is_handled()):
                raise _TimeIsUp
        elif callable(before):
            before(number, frame)

    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6), _REPEAT_SECONDS)
        yield
    finally:
        over = True  # an alarm in the last moment must not raise
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_handled() -> bool:
    """Returns whether a _TimeIsUp is on its way out of the block: another one would bypass its handlers."""
    handled = sys.exception()
    while handled is not None:
        if isinstance(handled, _TimeIsUp):
            return True
        handled = handled.__context__
    return False


def _copy(directory: Path, place: str, why: Sequence[str]) -> None:
    from stantools.recovery.directory_copy import copy_directory

    target = Path(place)
    if place.endswith("/"):
        target /= f"{directory.absolute().name}.{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    console.warning(f"guard: DIR is copied first, because: {'; '.join(why)}")
    made = copy_directory(directory, target)
    console.note(f"guard: the copy is {escape(str(made.path))}: `stantools doctor {shell_word(str(made.path))}`")


def _become(program: str, command: Sequence[str]) -> NoReturn:
    """Replaces this process by the server, with the environment and the signals that this process was given."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.setitimer(signal.ITIMER_REAL, 0)
    for each in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
        signal.signal(each, signal.SIG_DFL)
    variables = {name: value for name, value in os.environ.items() if name not in console.added_variables}
    try:
        os.execve(program, list(command), variables)
    except OSError as problem:
        raise StoreUnreadableError(f"{escape(program)}: cannot be run: {problem.strerror}") from problem
