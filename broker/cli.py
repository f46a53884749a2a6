"""The command `stan-broker`: takes the original server's command line (server-operations.md section 2)."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from broker.config.options import BrokerOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the broker, or answers.

    Args:
        argv: The arguments behind the program's name; those of the process if None.

    Returns:
        The exit code.
    """
    _replace_closed_streams()
    # Loading takes a while, in which Ctrl-C is to be handled already.
    from broker.config.options import Answer, SignalRequest
    from broker.config.parsing import parse
    from broker.config.values import ConfigurationError

    arguments = list(sys.argv[1:] if argv is None else argv)
    parsed = parse(arguments)
    if isinstance(parsed, Answer):
        _say(parsed.stdout, parsed.stderr)
        return parsed.exit_code
    if isinstance(parsed, SignalRequest):
        from broker.config.processes import send

        try:
            send(parsed.text)
        except ConfigurationError as problem:
            _say(stderr=f"{problem.message}\n")
            return 1
        return 0
    sockets = open_early(parsed)
    # What is loaded stays: the collector need not look at it, now or later.
    gc.disable()
    from broker.process import run

    gc.freeze()
    gc.enable()
    try:
        return run(parsed, arguments, sockets)
    except ConfigurationError as problem:
        from broker.config.logs import startup_problem

        _say(stderr=f"{startup_problem(problem.message)}\n")
        return 1
    finally:
        for each in sockets:
            each.close()


def open_early(options: BrokerOptions) -> list[socket.socket]:
    """Returns what the NATS server is to listen on; nothing if it cannot have that: it says why when it is its turn."""
    from broker.listening import MAX_PORT, open_sockets

    doomed = options.failure or options.monitoring.problem or not -1 <= options.nats.port <= MAX_PORT
    if not doomed and options.embedded:
        with contextlib.suppress(OSError):
            return open_sockets(options.nats.host, options.nats.port)
    return []


def console() -> None:
    """Runs the broker as a program."""
    # Until the event loop takes over, an interrupt ends the process silently.
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
