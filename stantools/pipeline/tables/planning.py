"""From paths to the parts that each task reads, in the order of stores, channels and slices, balanced by size.

Small slices are read together, large ones in parts. Bounds exclude slices without a selected message. Only
directories and, for large slices, their indexes are read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from stantools.errors import StoreUnreadableError
from stantools.format.crc import IEEE
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.inspection.records import FileKind, kind_of
from stantools.pipeline.tables.discovery import FoundStore, ListedChannel, discover
from stantools.pipeline.tables.listing import DirectoryEntry, listed
from stantools.pipeline.tables.model import (
    FailedRead,
    Mode,
    Part,
    ReadCounter,
    SlicePiece,
    Split,
    SqlPart,
    StorePart,
    StoreRef,
    StreamPart,
    TableName,
)
from stantools.pipeline.tables.slice_pieces import split_slice
from stantools.pipeline.tables.sql_parts import is_sql_store, sql_parts
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE, SUBS_FILE
from stantools.store.ranges import Bounds

_Item = TypeVar("_Item")

#: Cost of beginning a part, in bytes of reading.
_START_COST = {
    TableName.MESSAGES: 1 << 17,
    TableName.RECORDS: 1 << 18,
    TableName.SUBSCRIPTIONS: 1 << 18,
    TableName.CLIENTS: 1 << 20,
    TableName.FINDINGS: 1 << 19,
    TableName.SLICES: 1 << 18,
    TableName.STREAM_MESSAGES: 1 << 17,
}
#: Cost of a byte relative to one of messages: records are handled one by one.
_BYTE_COST = {TableName.RECORDS: 32, TableName.SUBSCRIPTIONS: 8, TableName.CLIENTS: 8}
#: Least bytes of a task: a smaller one costs more to start than to run. A user may ask for smaller ones.
_MIN_TASK_BYTES = 4 << 20
#: Tasks per requested task that keep all cores busy until the end.
_TASKS_PER_REQUEST = 4
#: Bytes of a slice up to which its reader applies the bounds.
_SMALL_SLICE = 1 << 20


@dataclass(frozen=True)
class ReadPlan:
    splits: list[Split]  #: the parts of each task, with the unreadable ones that make rows
    unreadable: list[FailedRead]  #: all that cannot be read
    stores: list[StoreRef]  #: the stores and directories of slices that were found


def plan(options: TableOptions, counter: ReadCounter | None = None) -> ReadPlan:
    """Plans how to read a table.

    Raises `StoreUnreadableError` if nothing at all is found, or for any failure in mode FAILFAST. `counter` counts
    the bytes of slices read for the plan.
    """
    if options.table is TableName.STREAM_MESSAGES:
        return _plan_streams(options)
    sql = [path for path in options.paths if is_sql_store(path)]
    files = replace(options, paths=tuple(path for path in options.paths if path not in sql))
    stores, missing = discover(files) if files.paths else ([], [])
    unreadable = list(missing)
    parts: list[Part] = []
    for path in sql:
        parts += sql_parts(path, options)
    unreadable += [part for part in parts if isinstance(part, FailedRead)]
    if unreadable and (options.mode is Mode.FAILFAST or not (stores or any(isinstance(p, SqlPart) for p in parts))):
        raise StoreUnreadableError(unreadable[0].message, unreadable[0].remedy)
    for store in stores:
        for part in _parts(store, options):
            if isinstance(part, FailedRead):
                unreadable.append(part)
                if options.mode is Mode.FAILFAST:
                    raise StoreUnreadableError(part.message, part.remedy)
            parts.append(part)
    parts += missing
    if options.mode is Mode.DROPMALFORMED:
        parts = [part for part in parts if not isinstance(part, FailedRead)]
    if options.table is TableName.MESSAGES:
        parts = _cut(parts, options, counter)
    groups = grouped(parts, [_weight(part, options.table) for part in parts], options)
    return ReadPlan([Split(tuple(group)) for group in groups], unreadable, [store.ref for store in stores])


def _plan_streams(options: TableOptions) -> ReadPlan:
    from stantools.pipeline.tables.stream_messages import stream_parts

    parts: list[Part] = list(stream_parts(options))
    unreadable = [part for part in parts if isinstance(part, FailedRead)]
    if unreadable and (options.mode is Mode.FAILFAST or len(unreadable) == len(options.paths)):
        raise StoreUnreadableError(unreadable[0].message, unreadable[0].remedy)
    if options.mode is Mode.DROPMALFORMED:
        parts = [part for part in parts if not isinstance(part, FailedRead)]
    groups = grouped(parts, [_weight(part, options.table) for part in parts], options)
    stores = list(dict.fromkeys(StoreRef(part.store, IEEE) for part in parts if isinstance(part, StreamPart)))
    return ReadPlan([Split(tuple(group)) for group in groups], unreadable, stores)


def grouped(items: Sequence[_Item], weights: Sequence[int], options: TableOptions) -> list[list[_Item]]:
    """Joins items into groups of similar weight (bytes), in order; size and number of groups follow the options."""
    total = sum(weights)
    if not total:
        return [list(items)] if items else []
    count = _count(total, options)
    groups: dict[int, list[_Item]] = {}
    before = 0
    for item, weight in zip(items, weights, strict=True):
        # It belongs to the group of its middle.
        groups.setdefault((2 * before + weight) * count // (2 * total), []).append(item)
        before += weight
    return list(groups.values())


def _count(total: int, options: TableOptions) -> int:
    usual = -(-total // options.partition_bytes)
    fewest = -(-total // max(options.partition_bytes, options.largest_partition))
    enough = min(usual, max(options.partitions, 1) * _TASKS_PER_REQUEST)
    return max(enough, fewest, min(options.partitions, total // _MIN_TASK_BYTES), 1)


def _weight(part: Part, table: TableName) -> int:
    return part.cost * _BYTE_COST.get(table, 1) + _START_COST[table]


def _parts(store: FoundStore, options: TableOptions) -> Iterator[Part]:
    table = options.table
    if table in (TableName.SUBSCRIPTIONS, TableName.CLIENTS) and store.loose is not None:
        root = store.ref.root
        yield FailedRead(
            root,
            f"{root}: holds slices without a store, so it has no {table}",
            "name the directory given to the server as -dir, or leave these out",
        )
    elif table is TableName.CLIENTS:
        yield StorePart(store.ref, None, None, _clients_size(store) + (len(store.channel_names) << 10))
    else:
        yield from _root_parts(store, table)
        subscriptions = False
        for channel in store.channels(options.channels):
            if not isinstance(channel, FailedRead):
                parts = list(_channel_parts(store, channel, options))
                subscriptions |= table is TableName.SUBSCRIPTIONS and bool(parts)
                yield from parts
            elif table is TableName.FINDINGS:
                yield StorePart(store.ref, channel.channel, None, 0)  # a failure to list is a finding
            else:
                yield channel
        if subscriptions:  # the kind of finding depends on the clients
            yield StorePart(store.ref, None, None, _clients_size(store))


def _clients_size(store: FoundStore) -> int:
    return sum(entry.size for entry in store.entries if entry.name == CLIENTS_FILE)


def _root_parts(store: FoundStore, table: TableName) -> Iterator[StorePart]:
    if store.loose is not None:
        return
    if table is TableName.FINDINGS:
        files = sum(entry.size for entry in store.entries if entry.name in (SERVER_FILE, CLIENTS_FILE))
        yield StorePart(store.ref, None, None, files + (len(store.channel_names) << 6))
    elif table is TableName.RECORDS:
        files_of_root = [e for e in store.entries if not e.directory and kind_of(e.name) is not None]
        for entry in sorted(files_of_root, key=lambda entry: entry.name != SERVER_FILE):
            yield StorePart(store.ref, None, entry.name, entry.size)


def _channel_parts(store: FoundStore, channel: ListedChannel, options: TableOptions) -> Iterator[Part]:
    table, name = options.table, channel.name
    directory = "" if store.loose is not None else f"{name}/"
    if table is TableName.SUBSCRIPTIONS:
        subs = next((e for e in channel.entries if e.name == SUBS_FILE), None)
        if subs:
            yield StorePart(store.ref, name, None, subs.size)
    elif table is TableName.RECORDS:
        for entry in _record_files(store, channel, options):
            yield StorePart(store.ref, name, directory + entry.name, entry.size)
    elif table is TableName.FINDINGS and store.loose is None:
        yield StorePart(store.ref, name, None, channel.size())
    else:
        for ref in store.slices(channel, archived=options.archived):
            file = directory + ref.data.rpartition("/")[2].partition("::")[0]
            if table is TableName.MESSAGES:
                yield SlicePiece(ref, FILE_HEADER_SIZE, ref.data_size)
            elif table is TableName.SLICES:
                yield StorePart(store.ref, name, file, ref.index_size or ref.data_size)
            else:
                yield StorePart(store.ref, name, file, ref.data_size + ref.index_size)


def _record_files(store: FoundStore, channel: ListedChannel, options: TableOptions) -> list[DirectoryEntry]:
    """Returns the files of a channel that hold records, subs.dat first, then by name."""
    every = options.archived or store.archived
    files = [
        entry
        for entry in channel.entries
        if not entry.directory and kind_of(entry.name) is not None and (every or not entry.name.endswith(".bak"))
    ]
    return sorted(files, key=lambda entry: kind_of(entry.name) is not FileKind.SUBS)


def _cut(parts: list[Part], options: TableOptions, counter: ReadCounter | None) -> list[Part]:
    pieces = [part for part in parts if isinstance(part, SlicePiece)]
    total = sum(_weight(piece, TableName.MESSAGES) for piece in pieces)
    if not total:
        return parts
    size = max(1, min(options.split_bytes, total // _count(total, options) // 2))
    how = replace(options, split_bytes=size)
    bounded = options.bounds != Bounds()

    def cut(part: Part) -> Sequence[Part]:
        if not isinstance(part, SlicePiece) or "://" in part.slice.data:
            return (part,)
        if part.cost <= (min(_SMALL_SLICE, size) if bounded else size):
            return (part,)
        try:
            return split_slice(part.slice, how, counter)
        except StoreUnreadableError:
            return (part,)  # its reader reports it

    return [piece for pieces in listed(cut, parts) for piece in pieces]
