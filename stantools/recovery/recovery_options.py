"""Options of salvage, merge and compaction. Nothing here imports numpy: help texts are made from it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stantools.options import ACCEPT_LOSS, ARCHIVED, CHANNELS, CLUSTER_ID, GENERATION, OUT, WORKERS, Option, option

if TYPE_CHECKING:
    from stantools.store.limits import SliceLimits, StoreLimits


BACKUP = Option(
    help="Directory for the removed bytes; by default STORE.truncated next to the store.", kind=Path, metavar="DIR"
)


@dataclass(frozen=True)
class SalvageOptions:
    patterns: tuple[str, ...] = CHANNELS.field()
    cluster_id: str | None = CLUSTER_ID.field(help="For a lost server.dat; a readable one keeps its id.")
    generation: str = GENERATION.field(
        help="If sequences began again: keep older generations as channels of their own, only the newest, or the Nth."
    )
    fill_gaps: bool = option("Put an empty message in the place of each missing one.", default=False)
    archived: bool = ARCHIVED.field()
    workers: int = WORKERS.field()
    #: Keep the positions of subscriptions up to the last sequence ever known. A store does not keep a last sequence
    #: without its message; other targets do.
    keep_positions: bool = False


#: versions of nats-server, of which the configurations of salvaged streams have no more members
STREAM_SERVERS: Final = ("2.9", "2.10", "2.11", "2.12", "2.14", "2.15")


class SalvageTarget(enum.StrEnum):
    """The form of salvaged streams."""

    STORE = "store"  #: the store directory of a stand-alone nats-server
    BACKUP = "backup"  #: a backup of each stream, for `nats stream restore`


@dataclass(frozen=True)
class StreamSalvageOptions:
    """Options of a salvage of a JetStream directory."""

    to: SalvageTarget = option(
        "Of a JetStream directory: write a nats-server's store directory, or a backup of each stream.",
        choices=SalvageTarget,
        default=SalvageTarget.STORE,
    )
    server_version: str = option(
        "Of a JetStream directory: the nats-server that opens the result; its configurations have no newer members.",
        choices=STREAM_SERVERS,
        default=STREAM_SERVERS[-1],
    )
    replicas: int = option(
        "Of a JetStream directory: replicas of the streams; a stand-alone server opens only those with one.",
        kind=int,
        least=1,
        most=5,
        default=1,
        metavar="N",
    )

    @property
    def version(self) -> tuple[int, int]:
        major, minor = self.server_version.split(".")
        return int(major), int(minor)


@dataclass(frozen=True)
class CompactTarget:
    """Destination of a compacted store, and the future of STORE."""

    out: Path | None = OUT.field(help="Where to write the compacted store.")
    in_place: bool = option("Replace STORE by the result; the old store is kept next to it.", default=False)
    backup: Path | None = option("The new name of STORE.", kind=Path, metavar="DIR")


@dataclass(frozen=True)
class MergeOptions(SalvageOptions):
    """Options of a merge: those of a salvage, and more."""

    generation: str = "newest"
    free_pages: bool = option(
        "Search deleted entries in free pages of the Raft logs for messages that are nowhere else.",
        default=False,
    )


@dataclass(frozen=True)
class CompactOptions:
    #: Leave out messages that a server with these limits has removed; None keeps all messages.
    limits: StoreLimits | None = None
    slices: SliceLimits | None = None  #: limits of a slice in the new store; None is the server's default
    drop_orphans: bool = option("Leave out plain subscriptions of clients that are gone.", default=False)
    accept_loss: bool = ACCEPT_LOSS.field(help="Continue even though slices or logs are already missing.")
    now_ns: int | None = None  #: present time for limits of age; the clock's by default
    workers: int = WORKERS.field()
