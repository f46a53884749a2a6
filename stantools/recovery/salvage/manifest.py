"""The report that a salvage leaves in the new store: the parts kept, moved, changed and dropped, with hashes.

Files are hashed while the rest of the store is still being written.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blake3 import blake3

from stantools import __version__
from stantools.escaping import known
from stantools.recovery.salvage.model import SalvagePlan, SalvageResult
from stantools.store.directory import MANIFEST_FILE
from stantools.store.durable import fsync_file, writing
from stantools.store.mapping import WINDOW, MappedWindow, mapped
from stantools.store.ranges import Ranges


@dataclass(frozen=True)
class MovedMessages:
    """Messages copied from a file of the old store to a slice of the new one."""

    file: str  #: data file of the old store, relative to its root
    channel: str  #: channel in the new store
    slice: int  #: number of the slice there (the last one, if there are several)
    sequences: Ranges
    note: str = ""  #: differences, if any


def write_manifest(content: Path, plan: SalvagePlan, moves: list[MovedMessages], files: dict[str, Any]) -> None:
    """Writes the manifest into a store that is otherwise complete; `files` has size and hash of each file."""
    text = known(json.dumps(describe(plan, moves) | {"files": files}, indent=1))
    (content / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def describe(plan: SalvagePlan, moves: list[MovedMessages]) -> dict[str, Any]:
    """Returns the content of a manifest, without the hashes of the files."""
    return {
        "schema": 1,
        "made_by": f"stantools {__version__} {plan.VERB}",
        "source": str(plan.source),
        "crc_polynomial": plan.crc.polynomial,
        "server": plan.server_note or "taken over",
        "cluster_id": plan.server.cluster_id.decode("utf-8", "backslashreplace"),
        "clients": len(plan.clients),
        "channels": [
            {
                "name": os.fsdecode(channel.name),
                "origin": channel.origin,
                "kept": channel.sequences.as_json(),
                "filled": channel.filled.as_json(),
                "missing": channel.missing.as_json(),
                "archived": channel.archived.as_json(),
                "unknown": channel.unknown,
                "subscriptions": len(channel.subscriptions),
            }
            for channel in plan.channels
        ],
        "moved": [
            {
                "file": one.file,
                "channel": one.channel,
                "slice": one.slice,
                "sequences": one.sequences.as_json(),
                "note": one.note,
            }
            for one in moves
        ],
        "dropped": [
            {
                "file": one.file,
                "offset": one.offset if one.offset >= 0 else None,
                "length": one.length,
                "reason": one.reason,
                "sequences": one.sequences.as_json(),
                "loss": one.loss,
                "fate": one.fate.value,
            }
            for one in plan.dropped
        ],
        "changes": plan.changes,
        **plan.account(),
    }


#: Files from this size on are synced as soon as they are complete, so that the disk is busy all the time.
_BIG = 1 << 20

Digest = dict[str, Any]


def report(plan: SalvagePlan, result: SalvageResult | None, check: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the report on one store; `check` is from `NewStoreCheck.as_json`."""
    described = describe(plan, [])
    return {
        "source": str(plan.source),
        "out": str(result.path) if result else None,
        "manifest": str(result.manifest) if result else None,
        "written": result is not None,
        "summary": plan_summary(plan),
        "channels": described["channels"],
        "dropped": described["dropped"],
        "changes": plan.changes,
        "server": described["server"],
        "cluster_id": described["cluster_id"],
        "check": check,
    }


def plan_summary(plan: SalvagePlan) -> dict[str, Any]:
    """Returns the numbers of a plan with stable names, for reports."""
    return {
        "channels": len(plan.channels),
        "messages": plan.messages,
        "filled": sum(channel.filled.count() for channel in plan.channels),
        "subscriptions": sum(len(channel.subscriptions) for channel in plan.channels),
        "clients": len(plan.clients),
        "bytes": plan.bytes,
        "lost": plan.gone,
        "missing_before": plan.missing,
        "lost_by_this_step": plan.lost,
        "archived": plan.outcome.archived,
        "unknown_channels": plan.outcome.unknown,
        "lossy": plan.lossy,
    }


class Hasher:
    """Hashes files with BLAKE3 (`b3sum` checks it), which is as fast as the writing, unlike SHA-256.

    Up to `workers` big files are hashed and synced in the background, so that there is no long wait for the disk at
    the end.
    """

    def __init__(self, root: Path, workers: int = 1) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(max(workers, 1))
        self._begun: dict[Path, Future[Digest] | Digest] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, path: Path) -> None:
        """Hashes a complete file: at once if it is small. May be called by any thread."""
        big = path.stat().st_size >= _BIG
        self._begun[path] = self._pool.submit(_finish, path) if big else _finish(path)

    def add_files(self, directory: Path) -> None:
        """Adds the files of a directory that are not added yet."""
        for path in directory.iterdir():
            if path not in self._begun and path.is_file():
                self.add(path)

    def digests(self) -> dict[str, Digest]:
        """Returns size and hash of every added file, by its path below the root.

        Raises `StoreUnwritableError` if a file cannot be synced.
        """
        return {
            str(path.relative_to(self._root)): begun.result() if isinstance(begun, Future) else begun
            for path, begun in self._begun.items()
        }


def _finish(path: Path) -> Digest:
    digest = blake3()
    with mapped(path, sequential=True) as data:
        size, window = len(data), MappedWindow(data)
        for at in range(0, size, WINDOW // 2):
            window.reach(at)
            digest.update(data[at : at + WINDOW // 2])
    if size >= _BIG:
        with writing(path):
            fsync_file(path)
    return {"size": size, "blake3": digest.hexdigest()}
