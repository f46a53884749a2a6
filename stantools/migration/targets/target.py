"""Where a plan goes: a running server, a directory of backups, or the store directory of a stopped server.

All three are asked the same: what is in the way, make it so, is it so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stantools.errors import UsageError
from stantools.migration.plan.model import Places
from stantools.nats.options import EMBEDDED, ConnectOptions

# The help of a verb loads this module: what handles messages is loaded where it is needed.
if TYPE_CHECKING:
    from stantools.migration.journal import Steps, StreamResult, Watch
    from stantools.migration.plan.model import Note, Plan, TargetRef
    from stantools.migration.prepared import PreparedStream
    from stantools.migration.targets.loading import ApplyOptions


class Destination(Protocol):
    """A place that streams are made in."""

    def reference(self) -> TargetRef:
        """Returns what a plan says about it, with the server's version as far as it is known."""

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Note]:
        """Looks for what is in the way, before anything is created.

        Args:
            streams: What is to be made.
            options: How.
            begun: Streams that an earlier run has, or may have, made already.
        """

    def apply(
        self, streams: Sequence[PreparedStream], journal: Steps, options: ApplyOptions, watch: Watch
    ) -> list[StreamResult]:
        """Makes every stream what the plan says."""

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: Watch, parallel: int
    ) -> list[StreamResult]:
        """Compares every stream with the store.

        Args:
            streams: What should be there.
            published: Streams that were published, wholly or in part.
            watch: Learns what is going on.
            parallel: Streams that are read at the same time.
        """


class PlannedDestination:
    """A server of our own that is not there yet: it can be planned for, no more.

    Args:
        store: Where it would keep its streams.
    """

    def __init__(self, store: Path) -> None:
        self._store = store

    def reference(self) -> TargetRef:
        """Returns its name."""
        from stantools.migration.plan.model import TargetKind, TargetRef

        return TargetRef(TargetKind.SERVER, (EMBEDDED,))

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Note]:
        """Looks for room; there is nobody to ask about anything else."""
        from stantools.migration.prepared import room_problems

        return room_problems(self._store, streams)

    def apply(
        self, streams: Sequence[PreparedStream], journal: Steps, options: ApplyOptions, watch: Watch
    ) -> list[StreamResult]:
        """Refuses."""
        raise UsageError(f"{EMBEDDED} is only planned for, it was not started")

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: Watch, parallel: int
    ) -> list[StreamResult]:
        """Refuses."""
        raise UsageError(f"{EMBEDDED} is only planned for, it was not started")


@contextmanager
def opened(
    places: Places,
    connecting: ConnectOptions,
    *,
    start: bool = True,
    note: Callable[[str], None] | None = None,
    check: Callable[[], None] | None = None,
) -> Iterator[Destination]:
    """Opens the target that is named; a server of our own runs as long as the block, unless it is not to be started.

    Args:
        places: Where to, if not to a running server.
        connecting: How to connect to a server.
        start: Start a server of our own, if that is wanted; else it can only be planned for.
        note: Called with what whoever waits should know.
        check: Called every moment while a server is talked to; what it raises ends that, in good order.

    Raises:
        StantoolsError: It cannot be started, or is not a directory for this.
    """
    from stantools.migration.targets.directories import BackupDirectory, StoreDirectory
    from stantools.migration.targets.server import ServerDestination
    from stantools.nats.errors import CannotConnectError
    from stantools.nats.serverprocess import EmbeddedServer

    if places.out:
        yield BackupDirectory(places.out)
    elif places.jetstream_store:
        yield StoreDirectory(places.jetstream_store, places.account, force=places.force)
    elif connecting.embedded and not start:
        yield PlannedDestination(places.embedded_store)
    elif connecting.embedded:
        with EmbeddedServer(places.embedded_store) as server:
            if note:
                note(f"a nats-server runs at {server.url}; its streams are in {places.embedded_store}")
            yield ServerDestination(replace(connecting, servers=(server.url,)), name=EMBEDDED, check=check, note=note)
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
    """Returns the target of a plan, if it is not a server."""
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
