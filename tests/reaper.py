"""Ends the servers that a test process has started when that process ends, also when it is killed.

A shell reads the ids of running servers from a pipe. When the pipe closes with the test process, it kills those that
are left. This also holds for servers that another thread starts, which PR_SET_PDEATHSIG would end with the thread.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from typing import Any

_SHELL = r"""
trap '' INT TERM HUP
while read -r sign id; do
    left=
    for each in $ids; do [ "$each" = "$id" ] || left="$left $each"; done
    case $sign in +) ids="$left $id" ;; *) ids=$left ;; esac
done
[ -z "$ids" ] || kill -9 $ids
"""


@cache
def _pipe(_: int) -> int:
    """The pipe of the shell of this process; a fork has one of its own."""
    end, pipe = os.pipe()
    shell = subprocess.Popen(["sh", "-c", _SHELL], stdin=end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shell.returncode = 0  # it ends after this process: nothing waits for it, and no warning says so
    os.close(end)
    return pipe


class ServerProcess(subprocess.Popen[bytes]):
    """A process that does not outlive this one."""

    _watched = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tell("+")
        self._watched = True

    def poll(self) -> int | None:
        code = super().poll()
        self._forget()
        return code

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        self._forget()
        return code

    def _forget(self) -> None:
        # The system may give the id to another process.
        if self._watched and self.returncode is not None:
            self._watched = False
            self._tell("-")

    def _tell(self, sign: str) -> None:
        os.write(_pipe(os.getpid()), f"{sign} {self.pid}\n".encode())
