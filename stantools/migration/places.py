"""Where a migration goes, as a user says it or a plan does, and how that is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import UsageError

if TYPE_CHECKING:
    from stantools.migration.destination import Destination
    from stantools.migration.plan.model import Plan
    from stantools.migration.target.options import ConnectOptions


@dataclass(frozen=True)
class Places:
    """Where streams go, if not to a running server."""

    to: str = "jetstream"
    out: Path | None = None
    jetstream_store: Path | None = None
    account: str = "$G"
    embedded_store: Path = Path("jetstream")
    force: bool = False

    def __post_init__(self) -> None:
        if self.out and self.jetstream_store:
            raise UsageError("--out and --jetstream-store exclude each other", "give one of them, or --server")


@contextmanager
def opened(
    places: Places,
    connecting: ConnectOptions,
    *,
    start: bool = True,
    note: Callable[[str], None] | None = None,
    check: Callable[[], None] | None = None,
) -> Iterator[Destination]:
    """Gives what is named; a server of our own runs as long as the block does, unless it is not to be started.

    Args:
        places: Where to, if not to a running server.
        connecting: How to connect to a server.
        start: Start a server of our own, if that is wanted; else it can only be planned for.
        note: Told what whoever waits should know.
        check: Called every moment while a server is talked to; what it raises ends that, in good order.

    Raises:
        StantoolsError: It cannot be started, or is no directory for this.
    """
    from stantools.migration.destination import PlannedDestination, ServerDestination
    from stantools.migration.destinationfiles import BackupDestination, StoreDestination
    from stantools.migration.target.embedded import EmbeddedServer
    from stantools.migration.target.errors import CannotConnectError

    if places.out:
        yield BackupDestination(places.out)
    elif places.jetstream_store:
        yield StoreDestination(places.jetstream_store, places.account, force=places.force)
    elif connecting.embedded and not start:
        yield PlannedDestination("embedded", places.embedded_store)
    elif connecting.embedded:
        with EmbeddedServer(places.embedded_store) as server:
            if note:
                note(f"a nats-server runs at {server.url}; its streams are in {places.embedded_store}")
            yield ServerDestination(replace(connecting, servers=(server.url,)), name="embedded", check=check, note=note)
    else:
        try:
            yield ServerDestination(connecting, check=check, note=note)
        except CannotConnectError as problem:
            if connecting.servers or connecting.context:
                raise
            ways = (
                "name it with --server URL; or go without a running one: --server embedded starts one here, "
                "--out DIR writes backups that `nats stream restore` takes"
            )
            raise CannotConnectError(problem.message, f"{problem.remedy}; {ways}") from problem


def places_of(plan: Plan, account: str, embedded_store: Path, *, force: bool = False) -> Places:
    """Returns the target of a plan, if it is no server."""
    from stantools.migration.plan.model import TargetKind

    place = Path(plan.target.places[0]) if plan.target.places else None
    return Places(
        out=place if plan.target.kind is TargetKind.BACKUP else None,
        jetstream_store=place if plan.target.kind is TargetKind.STORE else None,
        account=account,
        embedded_store=embedded_store,
        force=force,
    )


def connecting_of(plan: Plan, given: ConnectOptions) -> ConnectOptions:
    """Returns how to connect: as it is given now, else where the plan says."""
    from stantools.migration.plan.model import TargetKind

    if plan.target.kind is not TargetKind.SERVER or given.servers or given.context:
        return given
    return replace(given, servers=plan.target.places)
