"""Opening the target of a migration, as the command line or a plan names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.cli import console
from stantools.cli.migrationoptions import Places

if TYPE_CHECKING:
    from stantools.migration.destination import Destination
    from stantools.migration.plan.model import Plan
    from stantools.migration.target.options import ConnectOptions


@contextmanager
def opened(places: Places, connecting: ConnectOptions, *, start: bool = True) -> Iterator[Destination]:
    """Gives what the options name; a server of our own runs as long as the block does, unless it is not to be started.

    Raises:
        StantoolsError: It cannot be started, or is no directory for this.
    """
    from stantools.migration.destination import PlannedDestination, ServerDestination
    from stantools.migration.destinationfiles import BackupDestination, StoreDestination
    from stantools.migration.target.embedded import EmbeddedServer

    if places.out:
        yield BackupDestination(places.out)
    elif places.jetstream_store:
        yield StoreDestination(places.jetstream_store, places.account, force=places.force)
    elif connecting.embedded and not start:
        yield PlannedDestination("embedded")
    elif connecting.embedded:
        with EmbeddedServer(places.embedded_store) as server:
            console.note(f"a nats-server runs at {server.url}; its streams are in {places.embedded_store}")
            yield ServerDestination(replace(connecting, servers=(server.url,)), name="embedded")
    else:
        yield ServerDestination(connecting)


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
