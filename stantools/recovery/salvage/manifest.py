"""The account that a salvage leaves in the new store: what was kept, moved, changed and dropped, with hashes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools import __version__
from stantools.recovery.salvage.model import SalvagePlan
from stantools.store.directory import MANIFEST_FILE
from stantools.store.ranges import Ranges

__all__ = ["MANIFEST_FILE", "Moved", "write_manifest"]


@dataclass(frozen=True)
class Moved:
    """Messages that went from a file of the old store to a slice of the new one."""

    file: str  #: data file of the old store, relative to its root
    channel: str  #: channel in the new store
    slice: int  #: number of the slice there (the last one, if there are several)
    sequences: Ranges  #: which messages
    note: str = ""  #: what is different about them, if anything


def write_manifest(content: Path, plan: SalvagePlan, moved: list[Moved], files: dict[str, Any]) -> None:
    """Writes the manifest into a store that is complete but for it.

    Args:
        content: The new store.
        plan: What was done.
        moved: Where the messages went.
        files: Size and hash of each file (`hashing.Hasher`).
    """
    text = json.dumps(describe(plan, moved) | {"files": files}, indent=1)
    (content / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def describe(plan: SalvagePlan, moved: list[Moved]) -> dict[str, Any]:
    """Returns what a manifest says, without the hashes of the files."""
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
            for one in moved
        ],
        "dropped": [
            {
                "file": one.file,
                "offset": one.offset if one.offset >= 0 else None,
                "length": one.length,
                "reason": one.reason,
                "sequences": one.sequences.as_json(),
                "loss": one.loss,
            }
            for one in plan.dropped
        ],
        "changes": plan.changes,
        **plan.account(),
    }
