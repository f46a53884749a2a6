"""The command `stan-broker`: takes the original server's command line (operations section 2)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the broker, or answers.

    Args:
        argv: The arguments behind the program's name; those of the process if None.

    Returns:
        The exit code.
    """
    _replace_closed_streams()
    # Loading takes a while, in which Ctrl-C is to be handled already.
    from broker.config.logs import startup_problem
    from broker.config.options import Answer, SignalRequest
    from broker.config.parsing import parse
    from broker.config.signals import send
    from broker.config.values import ConfigurationError

    arguments = list(sys.argv[1:] if argv is None else argv)
    parsed = parse(arguments)
    if isinstance(parsed, Answer):
        _say(parsed.stdout, parsed.stderr)
        return parsed.exit_code
    if isinstance(parsed, SignalRequest):
        try:
            send(parsed.text)
        except ConfigurationError as problem:
            _say(stderr=f"{problem.message}\n")
            return 1
        return 0
    # The rest of the broker is not needed for answers.
    from broker.process import run

    try:
        return run(parsed, arguments)
    except ConfigurationError as problem:
        _say(stderr=f"{startup_problem(problem.message)}\n")
        return 1


def console() -> None:
    """Runs the broker as a program."""
    # Until the event loop takes over, an interrupt ends the process without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())


def _replace_closed_streams() -> None:
    """Opens what a shell has closed with `2>&-`: no other file may get a number that messages are written to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _say(stdout: str = "", stderr: str = "") -> None:
    for stream, text in ((sys.stderr, stderr), (sys.stdout, stdout)):
        if text:
            try:
                stream.write(text.encode("utf-8", "backslashreplace").decode())
                stream.flush()
            except BrokenPipeError:
                # Whoever read it has seen enough.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
