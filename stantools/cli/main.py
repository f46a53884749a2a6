"""The program `stantools`: finds the verb, runs it, and converts every ending into an exit code.

Codes: `stantools.errors.ExitCode`. A traceback is shown only for our own bugs, and only with -v.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from stantools.cli import console, own_command
from stantools.cli.verbs import ALIASES, CONTEXT, QUESTIONS, LazyGroup, summaries
from stantools.end_signal import SAME_SIGNAL_SECONDS
from stantools.errors import STILL_THERE, ExitCode, NotPermittedError, StantoolsError

#: variable that keeps the threads of linear algebra from starting
_THREADS = "OPENBLAS_NUM_THREADS"
_EXIT_CODES = """\
Exit codes: 0 clean or done; 1 findings or differences; 2 wrong usage; 3 cannot read or write; 4 refused for
safety; 5 done, with the announced loss; 130 interrupted.

STORE defaults to STANTOOLS_STORE, otherwise to the current directory or ./datastore if that is a store.
`stantools STORE` is `stantools doctor STORE`."""

#: Seconds after which a lost interruption is repeated.
_REPEAT_SECONDS = 1.0
#: time of the first interruption
_interrupted_at: float | None = None
#: the program's exit code; None until known
_exit_code: int | None = None


class Program(LazyGroup):
    NOUN = "verb"

    def summaries(self) -> dict[str, str]:
        return summaries()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the verb; a store in its place means `doctor`."""
        name = args[0]
        if name in ALIASES:
            args = [ALIASES[name], *args[1:]]
        elif name not in summaries() and not name.startswith("-") and (os.path.lexists(name) or os.sep in name):
            args = ["doctor", *args]  # a store without a verb
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, summaries()))
        for question, verbs in QUESTIONS.items():
            formatter.write_paragraph()
            formatter.write_text(question)
            with formatter.indentation():
                formatter.write_dl([(name.ljust(width), summary) for name, summary in verbs.items()])

    def main(self, args: Sequence[str] | None = None, *other: Any, **extra: Any) -> Any:
        """Runs the program and exits with one of the documented codes, never with a traceback."""
        extra["standalone_mode"] = False
        extra.setdefault("prog_name", "stantools")
        try:
            _make_output_tolerant()
            code = self._run(args, *other, **extra)
            if _interrupted_at is not None and code != ExitCode.INTERRUPTED:
                # It came too late, or got lost: the user still gets the answer.
                code = _report_interruption()
        except KeyboardInterrupt:
            code = _report_interruption()
        _release_signals()
        global _exit_code
        _exit_code = int(code or 0)
        sys.exit(_exit_code)

    def _run(self, args: Sequence[str] | None, *other: Any, **extra: Any) -> Any:
        try:
            code = super().main(args, *other, **extra)
            sys.stdout.flush()
        except click.Abort:
            return ExitCode.INTERRUPTED
        except click.ClickException as problem:
            return _report_usage(problem)
        except BrokenPipeError:
            _leave_closed_output()
        return code

    def make_context(self, *given: Any, **extra: Any) -> click.Context:
        own_command.keep(given[1])
        try:
            return super().make_context(*given, **extra)
        except BrokenPipeError:
            _leave_closed_output()

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb; failures end in a message and an exit code."""
        try:
            code = super().invoke(ctx)
            # The missing part of an archive is unknown, so an incomplete archive is never clean.
            return code or (ExitCode.FINDINGS if ctx.meta.get(console.FLAWED) else ExitCode.CLEAN)
        except StantoolsError as problem:
            console.error(problem.message, self._remedy(problem))
            return problem.exit_code
        except KeyboardInterrupt:
            return _report_interruption()
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as problem:
            if isinstance(problem, BrokenPipeError) and _output_is_closed():
                _leave_closed_output()
            return _report_unexpected(ctx, problem)

    def _remedy(self, problem: StantoolsError) -> str:
        """Returns the remedy with the user's own command where only a path or the user must change."""
        if (
            isinstance(problem, NotPermittedError)
            and problem.optional
            and own_command.may_add(self, own_command.ACCEPT_UNREADABLE)
        ):
            return f"{problem.remedy}; or skip it: `stantools COMMAND {own_command.ACCEPT_UNREADABLE}`"
        return problem.remedy


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from stantools.cli.optional_parts import describe

        click.echo(describe())
        ctx.exit()


@click.group(
    cls=Program,
    context_settings=CONTEXT,
    epilog=_EXIT_CODES,
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version, Python's, and the optional parts, and exit.",
)
def cli() -> None:
    """Inspect, check and rescue stores of NATS Streaming and JetStream.

    Inspecting commands never change anything. Other commands write a new directory unless told otherwise.
    """


def main() -> None:
    """The entry point of the installed command."""
    # Linear algebra is not used; numpy's threads for it only cost time.
    if _THREADS not in os.environ:
        os.environ[_THREADS] = "1"
        console.added_variables.append(_THREADS)
    atexit.register(_exit_quickly)  # the first registered is the last called
    be_interruptible()
    cli.main()


def _exit_quickly() -> None:
    """Ends the process without tearing modules down, which takes a fifth of a short command's time."""
    if _exit_code is None:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # the interpreter finds and reports that as well
    os._exit(_exit_code)


def be_interruptible() -> None:
    """Lets Ctrl-C and SIGTERM end the program at any point.

    The first one raises KeyboardInterrupt, so that unfinished work is undone and child processes are stopped; an
    event loop cancels its work instead. The second ends the process at once. KeyboardInterrupt can get lost: in a
    `__del__`, in the callback of a weak reference, in C code that clears errors, in a library's `except:`. It is
    therefore repeated every second until it is handled.

    SIGINT that is ignored from the start, as in a job that a script runs with `&`, stays ignored; SIGTERM does not.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # asyncio and others replace only the usual handler, which they know by this name.
        signal.default_int_handler = _interrupt  # type: ignore[assignment]
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGALRM, _repeat_interruption)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    global _interrupted_at
    now = time.monotonic()
    if _interrupted_at is not None:
        if now - _interrupted_at > SAME_SIGNAL_SECONDS:
            _die(number)
        return
    _interrupted_at = now
    signal.setitimer(signal.ITIMER_REAL, _REPEAT_SECONDS, _REPEAT_SECONDS)
    raise KeyboardInterrupt


def _die(number: int) -> None:
    """Ends the program by a signal at once, after removing private copies of archives."""
    if archives := sys.modules.get("stantools.sources.private_copy"):
        archives.remove_all()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Acts like Ctrl-C at this moment: an event loop handles it itself."""
    present = signal.getsignal(signal.SIGINT)
    (present if callable(present) else _interrupt)(number, frame)


def _repeat_interruption(_number: int, _frame: FrameType | None) -> None:
    """Repeats an interruption that is not being handled; an event loop does so in its own way."""
    if (asyncio := sys.modules.get("asyncio")) and asyncio._get_running_loop():
        return
    handled = sys.exception()
    while handled is not None:
        if isinstance(handled, KeyboardInterrupt | GeneratorExit):
            return
        handled = handled.__context__
    raise KeyboardInterrupt


def _release_signals() -> None:
    """Leaves signals to the system: later ones end Python's shutdown without a traceback."""
    if signal.getsignal(signal.SIGALRM) is _repeat_interruption:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)


def _report_interruption() -> int:
    # It is being handled. A repetition on the way out would bypass all handlers.
    signal.setitimer(signal.ITIMER_REAL, 0)
    console.error("interrupted")
    return ExitCode.INTERRUPTED


def _make_output_tolerant() -> None:
    """Keeps a name that the terminal cannot show, or a closed output, from ending the program."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _report_usage(problem: click.ClickException) -> int:
    if isinstance(problem, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        click.echo(problem.format_message())  # help, not an error
        return ExitCode.CLEAN
    context = getattr(problem, "ctx", None)
    remedy = f"see: {' '.join(context.command_path.split())} --help" if context else ""
    console.error(problem.format_message(), remedy)
    return ExitCode.USAGE


def _output_is_closed() -> bool:
    """Returns whether the reader of our output is gone; otherwise a network connection broke."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            poll.register(stream.fileno(), 0)
        except (OSError, ValueError):  # no real file
            continue
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _leave_closed_output() -> NoReturn:
    """Ends by SIGPIPE, as other programs do when their reader is gone: no exit code would be true."""
    _die(signal.SIGPIPE)
    raise AssertionError("SIGPIPE ends the program")


def _report_unexpected(ctx: click.Context, problem: Exception) -> int:
    if isinstance(problem, PermissionError) and problem.filename:
        from stantools.store.permissions import is_refused, refusal

        path = Path(os.fsdecode(problem.filename))
        if is_refused(path):  # an error of writing or of another operation
            problem = refusal(path, [path])
    if isinstance(problem, StantoolsError):
        console.error(problem.message, problem.remedy)
    elif isinstance(problem, FileNotFoundError) and problem.filename:
        console.error(
            f"{console.escape(os.fsdecode(problem.filename))}: cannot be read: {problem.strerror}", STILL_THERE
        )
    elif isinstance(problem, OSError):
        place = f"{console.escape(os.fsdecode(problem.filename))}: " if problem.filename else ""
        console.error(f"{place}{problem.strerror or str(problem) or type(problem).__name__}")
    elif isinstance(problem, MemoryError):
        console.error("out of memory")
    else:
        console.error(
            f"unexpected {type(problem).__name__}: {console.escape(str(problem))}",
            "this is a bug in stantools: please report it, with the output of the same command and -v",
        )
    if console.is_verbose(ctx):
        traceback.print_exc()
    return ExitCode.UNREACHABLE
