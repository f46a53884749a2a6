"""Options of a migration: planning and applying. Nothing here imports numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stantools.errors import UsageError
from stantools.migration.plan.plan_options import KEEP_ENCRYPTED, TargetPaths
from stantools.options import (
    ACCEPT_LOSS,
    AGE,
    KEY,
    WORKERS,
    declared,
    option,
)
from stantools.secret import Secret

if TYPE_CHECKING:
    from stantools.migration.plan.migration_plan import MigrationPlan, SourceRef
    from stantools.migration.plan.plan_options import PlanOptions
    from stantools.migration.source import SourceOptions
    from stantools.migration.store_follower import EndDetector
    from stantools.migration.targets.stream_load import ApplyOptions
    from stantools.store.read_options import ReadOptions
_PLACES = dict(declared(TargetPaths))


@dataclass(frozen=True)
class FollowOptions:
    follow: bool = option(
        "Load the store, then follow the messages of the running server. Ctrl-C ends it; the same command continues.",
        default=False,
    )
    cutover: bool = option(
        "Follow until the server has stopped; then migrate the rest, make the consumers and prove everything.",
        default=False,
    )
    cutover_when_idle: int | None = AGE.field(
        help="Like --cutover, but also end after this time without a write to the store, such as 10s."
    )

    @property
    def wanted(self) -> bool:
        return self.follow or self.cutover or self.cutover_when_idle is not None

    def check(self, plan_options: PlanOptions, *, nodes: bool) -> None:
        """Raises UsageError if this plan cannot be followed; `nodes`: the source is a cluster."""
        if plan_options.for_broker:
            raise UsageError(
                "--for-broker takes over the store of a stopped server, which cannot be followed", "stop it first"
            )
        if nodes and self.cutover_when_idle is not None:
            raise UsageError(
                "the nodes of a cluster are merged at the end, for which they must be stopped", "give --cutover instead"
            )

    def ending(self, *, server_seen: bool) -> EndDetector:
        """Returns the condition of the end; `server_seen`: an earlier run saw a server use the store."""
        from stantools.migration.store_follower import EndDetector

        idle = self.cutover_when_idle
        return EndDetector(self.cutover or idle is not None, None if idle is None else idle / 1e9, server_seen)


@dataclass(frozen=True)
class ApplySettings:
    replace: bool = option("Delete existing streams that differ, and load them again.", default=False)
    append_missing: bool = option(
        "Publish messages missing at the end of an existing stream, if all others are equal.", default=False
    )
    accept_loss: bool = ACCEPT_LOSS.field()
    parallel: int = option(
        "Streams loaded in parallel. nats-server 2.15.1 was seen to crash with several restores at once.",
        default=1,
        kind=int,
        least=1,
        most=64,
    )
    proof: str = option(
        "Compare every message afterwards, or only the counts that the server reports.",
        default="full",
        choices=("full", "counts"),
    )
    compress: bool = option("Compress archives on the network (snappy).", default=False)
    piece_timeout: float = option(
        "Seconds for the server to accept a piece of an archive.",
        default=30.0,
        kind=float,
        least=1,
        metavar="S",
    )
    restore_timeout: float = option(
        "Seconds for the server to unpack an archive.", default=3600.0, kind=float, least=1, metavar="S"
    )

    def __post_init__(self) -> None:
        if self.replace and self.append_missing:
            raise UsageError("--replace and --append-missing exclude each other", "give one of them")
        if self.compress:
            from stantools.streamfiles.framing import SNAPPY, Framer

            Framer(SNAPPY)

    def options(self, method: Any) -> ApplyOptions:
        from stantools.migration.targets.stream_load import ApplyOptions, ExistingPolicy

        existing = (
            ExistingPolicy.REPLACE
            if self.replace
            else ExistingPolicy.APPEND
            if self.append_missing
            else ExistingPolicy.REFUSE
        )
        return ApplyOptions(
            way=method,
            existing=existing,
            parallel=self.parallel,
            prove=self.proof == "full",
            compression="snappy" if self.compress else "stored",
            chunk_timeout=self.piece_timeout,
            final_timeout=self.restore_timeout,
        )


@dataclass(frozen=True)
class PlanStoreOptions:
    """The store of a plan, opened again, and its target."""

    store: Path | None = option("The store, if it has moved since the plan.", kind=Path, metavar="DIR")
    encryption_key: Secret = KEY.field()
    keep_encrypted: bool = KEEP_ENCRYPTED.field()
    account: str = _PLACES["account"].field(help="For a store directory: the account.")
    embedded_store: Path = _PLACES["embedded_store"].field()
    force: bool = _PLACES["force"].field()
    parallel: int = option("Streams read in parallel.", default=2, kind=int, least=1, most=64)
    workers: int = WORKERS.field()

    def read_options(self, source: SourceRef) -> ReadOptions:
        """Returns how the store is read; raises UsageError if the plan needs the encryption key."""
        from stantools.store.read_options import ReadOptions

        key = self.encryption_key.key()
        if source.decrypted and key is None:
            raise UsageError(
                "the plan was made with the encryption key, which it does not hold",
                "give the key: --encryption-key-env or --encryption-key-file",
            )
        return ReadOptions(source.crc_poly, True, key)

    def source_options(self, plan: MigrationPlan) -> SourceOptions:
        from stantools.migration.source import SourceOptions

        source = plan.source
        return SourceOptions(
            source.patterns, source.generation, source.archived, self.keep_encrypted, self.workers, plan.broker
        )
