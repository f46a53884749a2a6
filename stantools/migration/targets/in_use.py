"""Detects a nats-server that uses a store directory, without changing it.

Unlike a streaming server, a nats-server takes no lock, and without traffic it holds no file of its store open (seen
with every version from 2.9 to 2.15). So there are three signs:

1. processes that hold a file of the store open for writing;
2. running nats-server processes whose options or configuration name this directory, or whose store directory is
   unknown;
3. files that are being written right now.

The first two need Linux's `/proc`, and see other users' processes only as far as permissions allow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stantools.store.locks import QUIET_SECONDS, changing_file, open_handles
from stantools.store.running_servers import running_servers


def find_server(
    root: Path, *, quiet: float = QUIET_SECONDS, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yields a sentence for each sign that a server uses a JetStream directory.

    `root` is the directory `jetstream`, which may be missing. Without other signs, file times are watched for up to
    `quiet` seconds; 0 skips that.
    """
    seen = False
    if root.is_dir():
        for use in open_handles(root, _identities(root)):
            seen = True
            yield use.detail
    if not seen:
        for process in running_servers():
            if reason := process.uses(root):
                seen = True
                yield reason
    if not seen and quiet > 0 and (name := changing_file(root, quiet, sleep, bool)):
        yield f"{root / name} is being written right now"


def _identities(root: Path) -> set[tuple[int, int]]:
    """Returns device and inode of the message blocks, which are equal inside a container."""
    found = set()
    for path in root.glob("*/streams/*/msgs/*.blk"):
        try:
            status = path.stat()
        except OSError:
            continue  # removed meanwhile
        found.add((status.st_dev, status.st_ino))
    return found
