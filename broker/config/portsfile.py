"""Files that tell others about a running server: its process id and its ports (server-operations.md section 4)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from broker.config.syslog import TAG
from broker.config.systemerrors import reason
from broker.config.values import ConfigurationError
from broker.log import NATS


def write_pid_file(path: str) -> None:
    """Writes this process's id to a file, which stays there.

    Raises:
        ConfigurationError: It cannot be written. The text is that of the fatal line.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o660)
        try:
            os.write(descriptor, str(os.getpid()).encode())
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as problem:
        raise ConfigurationError(f"Could not write pidfile: open {path}: {reason(problem)}") from None


class PortsFile:
    """A file `<program>_<pid>.ports` with the URLs of a server; what fails is logged.

    Args:
        directory: Where it is written.
        nats: URLs for clients.
        monitoring: URLs of monitoring.
    """

    def __init__(self, directory: str, nats: Sequence[str], monitoring: Sequence[str] = ()) -> None:
        self.path = Path(directory) / f"{TAG}_{os.getpid()}.ports"
        urls = {"nats": list(nats)}
        if monitoring:
            urls["monitoring"] = list(monitoring)
        temporary = self.path.with_suffix(".ports.tmp")
        try:
            # Whoever waits for the file never sees half of it.
            temporary.write_text(json.dumps(urls, separators=(",", ":")))
            temporary.rename(self.path)
        except (OSError, ValueError) as problem:
            NATS.error("Error writing ports file (%s): open %s: %s", self.path, self.path, reason(problem))

    def remove(self) -> None:
        """Removes the file, at a clean end."""
        try:
            self.path.unlink()
        except (OSError, ValueError) as problem:
            NATS.error("Error cleaning up ports file %s: remove %s: %s", self.path, self.path, reason(problem))
