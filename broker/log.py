"""Names of the loggers, the level below debug, what is said seldom; how lines look is up to `broker.config.logs`."""

from __future__ import annotations

import errno
import logging
import resource
import time
from typing import Final

TRACE: Final = 5

#: Everything of the NATS server; everything of the streaming server, whose lines begin with `STREAM: `.
NATS: Final = logging.getLogger("broker.nats")
STREAMING: Final = logging.getLogger("broker.streaming")

_SECOND: Final = 1.0
_MINUTE: Final = 60.0
_said = float("-inf")


def out_of_files(problem: BaseException | None) -> bool:
    """Says, at most once a minute, that there are no more file descriptors, if that is the problem.

    Returns:
        Whether it is.
    """
    global _said
    if not isinstance(problem, OSError) or problem.errno not in (errno.EMFILE, errno.ENFILE):
        return False
    now = time.monotonic()
    if now - _said >= _MINUTE:
        _said = now
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        whose = f"the limit of this process (ulimit -n) is {limit}" if problem.errno == errno.EMFILE else "system-wide"
        NATS.error("Out of file descriptors, new connections are turned away: %s", whose)
    return True


class FailedLookups:
    """Says which messages of a channel cannot be read, of the same one at most once a second."""

    def __init__(self, channel: bytes) -> None:
        self._channel = channel.decode("utf-8", "replace")
        self._said = 0, float("-inf")

    def report(self, sequence: int, problem: Exception) -> None:
        """Says it of one message."""
        now = time.monotonic()
        if self._said[0] != sequence or now - self._said[1] >= _SECOND:
            self._said = sequence, now
            STREAMING.error("Error looking up message %s:%d (%s)", self._channel, sequence, problem)
