"""What the system says about a failed call, in the original's words."""

from __future__ import annotations

import errno
import os


def reason(problem: OSError | ValueError) -> str:
    """Returns the system's text in the original's style: `no such file or directory`."""
    if not isinstance(problem, OSError):
        return "invalid argument"
    if problem.errno is None:
        return str(problem)
    if problem.errno == errno.ENXIO:
        return "no such device or address"
    return os.strerror(problem.errno)[:1].lower() + os.strerror(problem.errno)[1:]
