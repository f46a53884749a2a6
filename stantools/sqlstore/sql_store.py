"""A SQL store, opened: its tables, the findings about its messages, and its conversion to a file store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from stantools.escaping import text
from stantools.notation import counted, describe_sequences
from stantools.sqlstore.conversion import ChannelContent, write_store
from stantools.sqlstore.message_scan import ChannelRows, MessageScan
from stantools.sqlstore.sql_recovery import KeptRow, SqlState, recover
from stantools.sqlstore.tables import ChannelRow, MessageRow, StoreTables
from stantools.store.directory import matches_any
from stantools.store.limits import StoreLimits
from stantools.store.ranges import Ranges

_RANGES = 4


class SqlReader(Protocol):
    """A database, or a dump of one."""

    @property
    def flaws(self) -> list[str]:
        """Parts of a dump that cannot be read."""

    @property
    def missing(self) -> list[str]:
        """Tables that are not there."""

    @property
    def tables(self) -> StoreTables: ...

    @property
    def scan(self) -> MessageScan: ...

    def messages(self) -> Iterator[list[MessageRow]]:
        """Yields the rows of table Messages; those of a channel in any order."""

    def active_server(self) -> str:
        """Describes a server that uses the database; "" for none, and for a dump."""


@dataclass
class SqlStore:
    path: str  #: as the user named it, without a password
    reader: SqlReader
    #: Writes messages as well whose row has another size or timestamp than their data.
    tolerant: bool = False

    @property
    def tables(self) -> StoreTables:
        return self.reader.tables

    @property
    def scan(self) -> MessageScan:
        return self.reader.scan

    @cached_property
    def channels(self) -> dict[str, list[ChannelRow]]:
        """The channels with their rows, the one that a server uses first.

        Others are earlier rows of the same name, and ids without a row: the messages name the channel of those. A row
        that is marked deleted belongs to none.
        """
        found: dict[str, list[ChannelRow]] = {}
        for row in self.tables.channels:
            if not row.deleted:
                found.setdefault(text(row.name), []).insert(0, row)
        for number in sorted(self.orphans):
            if len(subjects := self.scan.channels[number].by_subject) == 1:
                (name,) = subjects
                found.setdefault(text(name), []).append(ChannelRow(number, name, 0, 0, 0, 0, deleted=False))
        return found

    @cached_property
    def orphans(self) -> set[int]:
        """Ids of messages without a row in Channels."""
        return set(self.scan.channels) - {row.id for row in self.tables.channels}

    @cached_property
    def intact(self) -> SqlState:
        """Everything intact, also what a server would refuse or not look at."""
        rows = [row for name in self.channels for row in reversed(self.channels[name])]
        return recover(replace(self.tables, channels=rows), self.scan, tolerant=True)

    def recovered(self, limits: StoreLimits, now_ns: int) -> SqlState:
        """Returns the state that a server with these limits recovers."""
        return recover(self.tables, self.scan, limits=limits, now_ns=now_ns, rows_of=self._rows_of)

    def _rows_of(self, channels: Collection[int]) -> dict[int, list[KeptRow]]:
        found: dict[int, list[KeptRow]] = {each: [] for each in channels}
        for rows in self.reader.messages():
            for row in rows:
                if row.id in found:
                    found[row.id].append((row.seq, row.size or 0, row.timestamp or 0))
        return found

    def rows(self, row: ChannelRow) -> ChannelRows:
        return self.scan.channels.get(row.id) or ChannelRows(row.id)

    def intact_rows(self, name: str, *, tolerant: bool = False) -> dict[int, Ranges]:
        """Returns the intact messages of a channel by id, each sequence once.

        `tolerant`: also those whose row has another size or timestamp than their data.
        """
        found: dict[int, Ranges] = {}
        for row in self.channels[name]:
            rows = self.rows(row)
            chosen = rows.whole(row.name) if tolerant else rows.intact(row.name)
            found[row.id] = chosen - Ranges.union(found.values())
        return found

    def left_out(self) -> list[str]:
        """Describes the messages that `write` leaves out, in words."""
        found = []
        for name, rows in self.channels.items():
            kept = Ranges.union(self.intact_rows(name, tolerant=self.tolerant).values())
            there = Ranges.union(self.rows(row).sequences.ranges for row in rows)
            if gone := there - kept:
                where = describe_sequences(gone.pairs(), _RANGES)
                found.append(f"{name}: {counted(gone.count(), 'message')} left out, not intact: {where}")
        return found

    def matching(self, patterns: Sequence[str]) -> list[str]:
        return [each for each in self.channels if matches_any(each, patterns)]

    def write(
        self, directory: Path, patterns: Sequence[str] = (), progress: Callable[[int], object] | None = None
    ) -> None:
        """Writes the intact content into an empty directory, as a file store."""
        subscriptions = {
            text(channel.name): [(each.state, each.pending_by_row) for each in channel.subscriptions]
            for channel in self.intact.channels
        }
        chosen = []
        for name in self.matching(patterns):
            first, *others = self.channels[name]
            ascending = not others and self.rows(first).ascending
            wanted = self.intact_rows(name, tolerant=self.tolerant)
            chosen.append(ChannelContent(first.name, wanted, ascending, subscriptions[name]))
        write_store(directory, self.intact, chosen, self.reader.messages(), progress)
