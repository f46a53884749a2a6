"""A broker whose disk fails when it is told to: `python -m tests.interop.failing <orders> <words of the broker>`.

The file `orders` has lines of `<call> <error name> <part of the path>`; while it has them, these calls of the system
fail for such files, `write` also where it is `pwrite`. With HANG for the error they end only when the line is gone, and
the paths of the files are written to `<orders>.hanging` when they begin. It is looked at before each call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("write", "writev", "fsync", "ftruncate", "open", "mkdir")


def _path_of(first: Any) -> str:
    if isinstance(first, int):
        with contextlib.suppress(OSError):
            path = Path(f"/proc/self/fd/{first}").readlink()
            if path.name.startswith("#"):
                # It was made without a name, and may have got one.
                number = os.fstat(first).st_ino
                return next((each.path for each in os.scandir(path.parent) if each.inode() == number), str(path))
            return str(path)
        return ""
    return os.fsdecode(first)


def install(orders: Path) -> None:
    """Puts itself between this process and the system."""
    text = str(orders)
    real_open, real_read, real_write, real_close = os.open, os.read, os.write, os.close

    def wanted() -> list[list[str]]:
        try:
            descriptor = real_open(text, os.O_RDONLY)
        except FileNotFoundError:
            return []
        try:
            return [line.split() for line in real_read(descriptor, 4096).decode().splitlines()]
        finally:
            real_close(descriptor)

    def hang(line: list[str], path: str) -> None:
        descriptor = real_open(f"{text}.hanging", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        real_write(descriptor, f"{path}\n".encode())
        real_close(descriptor)
        while line in wanted():
            time.sleep(0.01)

    def between(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *more: Any, **named: Any) -> Any:
            for what, error, part in wanted():
                if what == name and part in _path_of(first):
                    if error == "HANG":
                        hang([what, error, part], _path_of(first))
                        continue
                    number = getattr(errno, error)
                    # Some of it is written before the disk is full.
                    if name == "write":
                        real(first, bytes(more[0])[:7], *more[1:])
                    elif name == "writev":
                        real(first, [bytes(more[0][0])[:5]])
                    raise OSError(number, os.strerror(number))
            return real(first, *more, **named)

        return call

    for name in CALLS:
        setattr(os, name, between(name, getattr(os, name)))
    os.pwrite = between("write", os.pwrite)


def console() -> None:
    install(Path(sys.argv[1]))
    from broker.cli import main
    from broker.stores.file import disk
    from tests.broker.stores.faults import CalledSyncs

    disk.KernelSyncs = CalledSyncs  # type: ignore[assignment, misc]

    sys.exit(main(sys.argv[2:]))


if __name__ == "__main__":
    console()
