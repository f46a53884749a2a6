"""Files with process id and ports of a server, and signals to it (`-sl`).

Facts: server-operations.md sections 2 and 4.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from broker.config.logs import TAG
from broker.config.values import ConfigurationError, reason
from broker.log import NATS
from stantools.format.quoting import quote

SIGNALS: Final = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}
#: program names of servers: the original's, and this one's
PROGRAMS: Final = (TAG, "stan-broker")
_MAX_PID_FILE: Final = 64


def write_pid_file(path: str) -> None:
    """Writes this process's id to a file, which stays; the error has the text of the fatal line."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o660)
        try:
            os.write(descriptor, str(os.getpid()).encode())
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as problem:
        raise ConfigurationError(f"Could not write pidfile: open {path}: {reason(problem)}") from None


class PortsFile:
    """A file `<program>_<pid>.ports` with the URLs of a server; failures are logged."""

    def __init__(self, directory: str, nats: Sequence[str], monitoring: Sequence[str] = ()) -> None:
        self.path = Path(directory) / f"{TAG}_{os.getpid()}.ports"
        urls = {"nats": list(nats)}
        if monitoring:
            urls["monitoring"] = list(monitoring)
        temporary = self.path.with_suffix(".ports.tmp")
        try:
            # Atomic for readers, and an existing file or link of that name is not written through.
            temporary.unlink(missing_ok=True)
            with temporary.open("x") as file:
                file.write(json.dumps(urls, separators=(",", ":")))
            temporary.rename(self.path)
        except (OSError, ValueError) as problem:
            NATS.error("Error writing ports file (%s): open %s: %s", self.path, self.path, reason(problem))

    def remove(self) -> None:
        try:
            self.path.unlink()
        except (OSError, ValueError) as problem:
            NATS.error("Error cleaning up ports file %s: remove %s: %s", self.path, self.path, reason(problem))


def send(request: str) -> None:
    """Sends a signal: `<signal>=<pid>`, `<signal>=<pid file>`, or `<signal>` to the only running server."""
    parts = request.split("=")
    if len(parts) > 2:
        raise ConfigurationError(f"invalid signal parameters: [{' '.join(parts[2:])}]")
    number = SIGNALS.get(parts[0])
    if number is None:
        raise ConfigurationError(f"unknown signal {quote(parts[0])}")
    process = _process_id(parts[1]) if len(parts) == 2 and parts[1] else _only_one()
    try:
        os.kill(process, number)
    except ProcessLookupError:
        raise ConfigurationError("no such process") from None
    except (OSError, OverflowError) as problem:
        raise ConfigurationError(reason(problem) if isinstance(problem, OSError) else "no such process") from None


def _process_id(text: str) -> int:
    """Returns a process id from a number, or from a file with one."""
    found = text
    if not _is_number(text):
        try:
            with Path(text).open("rb") as file:
                found = file.read(_MAX_PID_FILE).decode("ascii", "replace").strip()
        except (OSError, ValueError):
            raise ConfigurationError(f"invalid pid: {text}") from None
    # 0 and negative numbers would signal process groups.
    if not _is_number(found) or int(found) <= 0:
        raise ConfigurationError(f"invalid pid: {found or text}")
    return int(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _only_one() -> int:
    found = sorted(running_servers())
    if not found:
        raise ConfigurationError(f"no {PROGRAMS[0]} processes running")
    if len(found) > 1:
        listed = "\n".join(str(process) for process in found)
        raise ConfigurationError(f"multiple {PROGRAMS[0]} processes running:\n{listed}")
    return found[0]


def running_servers() -> Iterator[int]:
    """Yields the processes of other servers."""
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")[:3]
        except OSError:
            continue
        names = [os.fsdecode(word).rpartition("/")[2] for word in words]
        # the program itself, or an interpreter with the program as its script
        interpreted = names[0].startswith("python") and len(names) > 1 and names[1] in PROGRAMS
        if names[0] in PROGRAMS or interpreted:
            yield int(entry.name)
