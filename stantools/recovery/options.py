"""What users say of a salvage and of a compaction. Nothing here imports numpy: help texts are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.options import ACCEPT_LOSS, ARCHIVED, CHANNELS, CLUSTER_ID, GENERATION, OUT, WORKERS, Option, option

if TYPE_CHECKING:
    from stantools.store.limits import SliceLimits, StoreLimits


BACKUP = Option(help="Where to save what is removed; STORE.truncated beside it if not given.", kind=Path, metavar="DIR")


@dataclass(frozen=True)
class SalvageOptions:
    """How to salvage.

    Attributes:
        patterns: Channels to take, with NATS wildcards; none takes all.
        cluster_id: Cluster id for a lost server.dat; the one in the store counts if it can be read.
        generation: `split`, `newest`, or the number of the generation to keep, from 1 for the oldest.
        fill_gaps: Put an empty message in the place of every missing one, as servers do (filestore.md section 5.3).
        archived: Also take messages from `.bak` slices.
        workers: Slices that are scanned, and channels that are written, at the same time.
        keep_positions: Leave the positions of subscriptions as they are up to the last sequence that was ever known.
            A store does not hold a last sequence without its message, other targets do.
    """

    patterns: tuple[str, ...] = CHANNELS.field()
    cluster_id: str | None = CLUSTER_ID.field(help="For a lost server.dat; a readable one keeps its id.")
    generation: str = GENERATION.field(
        help="If sequences began again: keep older generations as channels of their own, only the newest, or the Nth."
    )
    fill_gaps: bool = option("Put an empty message in the place of each that is lost.", default=False)
    archived: bool = ARCHIVED.field()
    workers: int = WORKERS.field()
    keep_positions: bool = False


@dataclass(frozen=True)
class CompactTarget:
    """Where a compacted store goes, and what becomes of STORE."""

    out: Path | None = OUT.field(help="Where to write the compacted store.")
    in_place: bool = option("Put the result in the place of STORE, which is kept beside it.", default=False)
    backup: Path | None = option("What STORE is called then.", kind=Path, metavar="DIR")


@dataclass(frozen=True)
class MergeOptions(SalvageOptions):
    """How to merge the nodes of a cluster: as to salvage, and besides.

    Attributes:
        free_pages: Look for messages that nothing else has in deleted entries of the Raft logs.
    """

    generation: str = "newest"
    free_pages: bool = option(
        "Look for messages that nothing else has in deleted entries, which lie in free pages of the Raft logs.",
        default=False,
    )


@dataclass(frozen=True)
class CompactOptions:
    """How to compact.

    Attributes:
        limits: Leave out messages that a server with these limits has removed; None keeps all messages.
        slices: When a slice of the new store is full; None is the server's default.
        drop_orphans: Leave out plain subscriptions whose client is gone, which the server never removes.
        accept_loss: Go on although slices or logs are missing.
        now_ns: The present, for limits of age; the clock's if not given.
        workers: Slices that are read, and channels that are written, at the same time.
    """

    limits: StoreLimits | None = None
    slices: SliceLimits | None = None
    drop_orphans: bool = option("Leave out plain subscriptions of clients that are gone.", default=False)
    accept_loss: bool = ACCEPT_LOSS.field(help="Go on although slices or logs are missing already.")
    now_ns: int | None = None
    workers: int = WORKERS.field()
