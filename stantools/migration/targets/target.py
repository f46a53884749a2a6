"""The target of a plan: a running server, a directory of backups, or the store directory of a stopped server.

All three check for problems, apply, and verify.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stantools.migration.plan.plan_options import TargetPaths
from stantools.nats.connect_options import EMBEDDED, ConnectOptions

# The help of a verb loads this module; heavy imports happen on use.
if TYPE_CHECKING:
    from stantools.migration.journal import JournalObserver, StepLog, StreamResult
    from stantools.migration.plan.migration_plan import MigrationPlan, Remark, TargetRef
    from stantools.migration.prepared_stream import PreparedStream
    from stantools.migration.targets.stream_load import ApplyOptions


class Destination(Protocol):
    def reference(self) -> TargetRef:
        """Returns its description in a plan, with the server's version if known."""

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Remark]:
        """Checks for problems before anything is created; `begun` are streams that an earlier run may have made."""

    def contents(self, names: Collection[str]) -> Mapping[str, str]:
        """Describes the streams of these names that exist: `200 up to 210` are numbers of messages."""

    def apply(
        self, streams: Sequence[PreparedStream], journal: StepLog, options: ApplyOptions, watch: JournalObserver
    ) -> list[StreamResult]: ...

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: JournalObserver, parallel: int
    ) -> list[StreamResult]:
        """Compares every stream with the store; `published` names the ones published wholly or in part."""


@contextmanager
def opened(
    places: TargetPaths,
    connect_options: ConnectOptions,
    *,
    start: bool = True,
    note: Callable[[str], None] | None = None,
    check: Callable[[], None] | None = None,
) -> Iterator[Destination]:
    """Opens the target. An embedded server runs until the end of the block; without `start` it can only be planned for.

    `note` gets messages for the user. `check` is called regularly while a server is used; an exception from it ends
    that.
    """
    from stantools.migration.targets.directories import BackupDirectory, StoreDirectory
    from stantools.migration.targets.planned_server import PlannedServer
    from stantools.migration.targets.server_destination import ServerDestination
    from stantools.nats.errors import CannotConnectError
    from stantools.nats.serverprocess import EmbeddedServer

    if places.out:
        yield BackupDirectory(places.out)
    elif places.jetstream_store:
        yield StoreDirectory(places.jetstream_store, places.account, force=places.force)
    elif connect_options.embedded and not start:
        yield PlannedServer(places.embedded_store, force=places.force)
    elif connect_options.embedded:
        PlannedServer(places.embedded_store, force=places.force).check_unused()
        with EmbeddedServer(places.embedded_store) as server:
            if note:
                note(f"a nats-server runs at {server.url}; its streams are in {places.embedded_store}")
            yield ServerDestination(
                replace(connect_options, servers=(server.url,)), name=EMBEDDED, check=check, note=note
            )
    else:
        try:
            yield ServerDestination(connect_options, check=check, note=note)
        except CannotConnectError as problem:
            if connect_options.servers or connect_options.context:
                raise
            ways = (
                "name it with --server URL; or use no running server: --server embedded starts one here, "
                "--out DIR writes backups for `nats stream restore`"
            )
            raise CannotConnectError(problem.message, f"{problem.remedy}; {ways}") from problem


def places_of(plan: MigrationPlan, account: str, embedded_store: Path, *, force: bool = False) -> TargetPaths:
    """Returns the target of a plan that is not a server."""
    from stantools.migration.plan.migration_plan import TargetKind

    place = Path(plan.target.places[0]) if plan.target.places else None
    return TargetPaths(
        out=place if plan.target.kind is TargetKind.BACKUP else None,
        jetstream_store=place if plan.target.kind is TargetKind.STORE else None,
        account=account,
        embedded_store=embedded_store,
        force=force,
    )


def connecting_of(plan: MigrationPlan, given: ConnectOptions) -> ConnectOptions:
    """Returns the connection options given now, with the plan's URLs as default."""
    from stantools.migration.plan.migration_plan import TargetKind

    if plan.target.kind is not TargetKind.SERVER or given.servers or given.context:
        return given
    return replace(given, servers=plan.target.places)
