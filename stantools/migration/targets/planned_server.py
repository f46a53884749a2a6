"""A server of our own that does not run yet, for planning: its store directory is read as it would read it.

Streams that exist there, what is in them and whose subjects they have are found without a server, and nothing is
written. `StoreDirectory` knows the directory; what a run would do with an existing stream is that of a running server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stantools.errors import RefusedError, UsageError, readable
from stantools.migration.journal import JournalObserver, StepLog, StreamResult
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import Remark, RemarkLevel, TargetKind, TargetRef
from stantools.migration.prepared_stream import PreparedStream, room_problems
from stantools.migration.server.demands import stream_exists
from stantools.migration.targets.directories import StoreDirectory
from stantools.migration.targets.in_use import find_server
from stantools.migration.targets.layout import GLOBAL_ACCOUNT, JETSTREAM, read_layout
from stantools.migration.targets.server_destination import as_remarks
from stantools.migration.targets.stream_load import ApplyOptions
from stantools.nats.connect_options import EMBEDDED

if TYPE_CHECKING:
    from stantools.inspection.stream_overview import StreamOverview


class PlannedServer:
    """The target `embedded` before its start; `force` accepts a server that seems to use its directory."""

    def __init__(self, store: Path, *, force: bool = False) -> None:
        self._store = store
        self._force = force

    @cached_property
    def _directory(self) -> StoreDirectory | None:
        """Its streams; None if it begins without any."""
        with readable(self._store, "run it as the user that owns it, or choose another --embedded-store"):
            begun = (self._store / JETSTREAM).is_dir()
        return StoreDirectory(self._store, force=self._force) if begun else None

    def reference(self) -> TargetRef:
        return TargetRef(TargetKind.SERVER, (EMBEDDED,))

    def problems(
        self, streams: Sequence[PreparedStream], options: ApplyOptions, begun: Collection[str] = ()
    ) -> list[Remark]:
        """Checks for space, for another server, and for streams of the same names or subjects."""
        if self._directory is None:
            return [*self._misplaced(), *room_problems(self._store, streams)]
        remarks = self._directory.check([stream.plan for stream in streams], replace=True)
        wanted = {stream.name: stream for stream in streams}
        for each in self._present(wanted):
            complete = options.way is LoadMethod.ARCHIVE and wanted[each.name].resembles(
                each.config or {}, each.messages, each.last_seq
            )
            if not (complete or options.keeps_existing or each.name in begun):
                remarks += as_remarks([stream_exists(each.name, each.messages, each.last_seq)], options)
        return remarks

    def contents(self, names: Collection[str]) -> Mapping[str, str]:
        return self._directory.contents(names) if self._directory else {}

    def _present(self, names: Collection[str]) -> list[StreamOverview]:
        return (
            [self._directory.overview(name) for name in sorted(self._directory.present(names))]
            if self._directory
            else []
        )

    def _misplaced(self) -> list[Remark]:
        """Warns of streams that lie where this server does not look for them."""
        try:
            layout = read_layout(self._store, GLOBAL_ACCOUNT)
        except RefusedError:
            return []  # other files, which it leaves alone
        if not layout.accounts:
            return []
        text = (
            f"holds the accounts of a server, and a server that is started with it looks in {self._store / JETSTREAM}"
        )
        remedy = f"to use them: --embedded-store {self._store.absolute().parent}"
        return [Remark(RemarkLevel.WARNING, str(self._store), text, remedy)]

    def check_unused(self) -> None:
        """Raises RefusedError if another server uses its directory, as a second one would destroy its streams."""
        sign = next(find_server(self._store.absolute() / JETSTREAM, quiet=0), "") if self._directory else ""
        if sign and not self._force:
            raise RefusedError(
                f"{self._store}: is in use: {sign}",
                "name that server with --server URL; or choose another --embedded-store; or use --force if you know "
                "that it does not use this directory",
            )

    def apply(
        self, streams: Sequence[PreparedStream], journal: StepLog, options: ApplyOptions, watch: JournalObserver
    ) -> list[StreamResult]:
        raise UsageError(f"{EMBEDDED} was not started, it can only be planned for")

    def verify(
        self, streams: Sequence[PreparedStream], published: Collection[str], watch: JournalObserver, parallel: int
    ) -> list[StreamResult]:
        raise UsageError(f"{EMBEDDED} was not started, it can only be planned for")
