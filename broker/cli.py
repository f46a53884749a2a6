"""The command `stan-broker`, with the original server's command line (server-operations.md section 2)."""

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

    from broker.config.broker_options import BrokerOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the broker, or prints help or version; returns the exit code."""
    # A data file must not get the number of a standard stream that the shell closed (`2>&-`).
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    # Imported here because loading takes a while, and Ctrl-C must already work.
    from broker.config.broker_options import CommandAnswer, SignalRequest
    from broker.config.reader import parse
    from broker.config.values import ConfigurationError

    arguments = list(sys.argv[1:] if argv is None else argv)
    parsed = parse(arguments)
    if isinstance(parsed, CommandAnswer):
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
    # Loaded modules stay in memory, so the garbage collector can skip them.
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
    """Opens the listening sockets of the NATS server early; returns none if that fails: the server reports it later."""
    from broker.listening import MAX_PORT, open_sockets

    doomed = options.failure or options.monitoring.problem or not -1 <= options.nats.port <= MAX_PORT
    if not doomed and options.embedded:
        with contextlib.suppress(OSError):
            return open_sockets(options.nats.host, options.nats.port)
    return []


def console() -> None:
    # Until the event loop takes over, an interrupt ends the process silently.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())


def _say(stdout: str = "", stderr: str = "") -> None:
    for stream, text in ((sys.stderr, stderr), (sys.stdout, stdout)):
        if text:
            try:
                stream.write(text.encode("utf-8", "backslashreplace").decode())
                stream.flush()
            except BrokenPipeError:
                # The reader of the pipe has closed it.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
