"""Contents of a store, from its indexes and logs alone: the state that the server recovers from it.

Cheap by design: of the message files only the indexes and the last record of each slice are read, unless an index
cannot be trusted. Damage in the middle of a data file is not seen here; `inspection.verify` reads everything.
"""

from __future__ import annotations

import enum
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from stantools.errors import StoreUnreadableError
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.slicesummary import LogicalView, SliceSummary, logical_view, summarise, totals_of
from stantools.inspection.subscribers import NO_SUBSCRIPTIONS, SubscriberList, fields_json, load_clients, load_subs
from stantools.store.directory import SERVER_FILE, Datastore, size_of
from stantools.store.limits import StoreLimits
from stantools.store.mapping import mapped
from stantools.store.serverinfo import ServerFile, ServerOutcome, era_of, read_server_info
from stantools.store.sublog import SubStatus
from stantools.work import ThreadWork


@dataclass
class ChannelOverview:
    name: str
    first_seq: int = 0  #: first sequence as the server counts (`slicesummary.Totals`); 0 if it has no message
    last_seq: int = 0
    count: int = 0
    bytes: int = 0  #: size in the server's accounting (payload of the record + 40 each)
    slices: list[SliceSummary] = field(default_factory=list)  #: by number
    archived: list[SliceSummary] = field(default_factory=list)  #: `.bak` slices, by number
    subscriptions: SubscriberList = NO_SUBSCRIPTIONS  #: by id
    disk_bytes: int = 0  #: size of its files
    logical: LogicalView | None = None  #: state shown by a server with the given limits, if limits were given
    encrypted: bool = False  #: messages of it may be encrypted
    #: Problems in words, each after its file's name.
    problems: list[str] = field(default_factory=list)

    def as_json(self, *, streamed: bool = False) -> dict[str, Any]:
        """Returns the channel with the names of the json contract; under limits as a server with them shows it.

        `streamed`: the subscriptions are an iterator instead of a list.
        """
        subscriptions = (each.as_json() for each in self.subscriptions)
        shown: ChannelOverview | LogicalView = self.logical or self
        result = {
            "name": self.name,
            "first_seq": shown.first_seq,
            "last_seq": shown.last_seq,
            "count": shown.count,
            "bytes": shown.bytes,
            "slices": [_slice_json(each) for each in self.slices],
            "subscriptions": subscriptions if streamed else list(subscriptions),
            "archived": [_slice_json(each) for each in self.archived],
            "disk_bytes": self.disk_bytes,
            "encrypted": self.encrypted,
            "problems": self.problems,
        }
        if self.logical:
            result["on_disk"] = {"first_seq": self.first_seq, "count": self.count, "bytes": self.bytes}
        return result


def _slice_json(each: SliceSummary) -> dict[str, Any]:
    files = each.files
    return {
        "number": files.number,
        "data": files.data.name if files.data else None,
        "index": files.index.name if files.index else None,
        "first_seq": each.first_seq,
        "last_seq": each.last_seq,
        "count": each.count,
        "bytes": each.bytes,
        "first_timestamp_ns": each.first_timestamp,
        "last_timestamp_ns": each.last_timestamp,
        "data_size": files.data_size,
        "index_size": files.index_size,
        "source": each.source.value,
        "problems": list(each.problems),
    }


@dataclass
class Overview:
    path: str
    server: pb.ServerInfo | None = None  #: content of server.dat
    #: Clients as recovered, in the order in which they connected.
    clients: list[pb.ClientInfo] = field(default_factory=list)
    channels: list[ChannelOverview] = field(default_factory=list)  #: by name
    polynomial: int = 0  #: CRC polynomial of the store
    era: str = ""  #: releases of the server that write such a store
    leftovers: list[str] = field(default_factory=list)  #: names of temporary files of an interrupted compaction
    symlinks: list[str] = field(default_factory=list)  #: names of links to directories, which the server ignores
    foreign: list[str] = field(default_factory=list)  #: names of other files in the root
    raft_logs: list[str] = field(default_factory=list)  #: paths of raft logs, relative to the root
    #: Groups of channel names that differ by letter case only.
    case_collisions: list[list[str]] = field(default_factory=list)
    witness: bool = False  #: the last start used the truncate option
    #: Problems in words, without those of the channels.
    problems: list[str] = field(default_factory=list)

    def all_problems(self) -> Iterator[str]:
        """Iterates over every problem, the store's first; those of channels after the channel's name."""
        yield from self.problems
        for channel in self.channels:
            yield from (f"{channel.name}/{problem}" for problem in channel.problems)

    def as_json(self, *, streamed: bool = False) -> dict[str, Any]:
        """Returns the store with the names of docs/reference/json.md.

        `streamed`: the channels, and the subscriptions of each, are iterators instead of lists.
        """
        channels = (each.as_json(streamed=streamed) for each in self.channels)
        return {
            "path": self.path,
            "server": fields_json(self.server) if self.server else None,
            "clients": [fields_json(each) for each in self.clients],
            "channels": channels if streamed else list(channels),
            "crc_polynomial": self.polynomial,
            "written_by": self.era,
            "leftovers": self.leftovers,
            "symlinks": self.symlinks,
            "foreign_files": self.foreign,
            "raft_logs": self.raft_logs,
            "case_collisions": self.case_collisions,
            "witness": self.witness,
            "problems": self.problems,
        }


def overview(
    store: Datastore,
    *,
    patterns: Sequence[str] = (),
    limits: StoreLimits | None = None,
    workers: int = 2,
    progress: Callable[[int], object] | None = None,
) -> Overview:
    """Reads a store without its messages.

    With `limits`, each channel is shown as by a server with these limits. `workers` channels are read at the same
    time. `progress` is called with bytes of data files.
    """
    result = root_overview(store)
    known = {client.id: client for client in result.clients}
    channels = channel_overviews(store, known, patterns=patterns, limits=limits, workers=workers)
    for channel in channels:
        result.channels.append(channel)
        if progress:
            progress(sum(each.files.data_size for each in channel.slices))
    result.era = era(result)
    return result


def root_overview(store: Datastore) -> Overview:
    """Reads a store's root: server.dat, clients.dat and the names in it, nothing of the channels."""
    server = _server(store)
    clients = load_clients(store.clients, store.crc)
    known = list(clients.state.clients.values())
    result = Overview(str(store.path), server.info, known, polynomial=store.crc.polynomial)
    if store.alone:
        return result
    if server.outcome is not ServerOutcome.RECOVERED:
        result.problems.append(f"{SERVER_FILE}: {server.error or 'is missing or holds no record'}")
    result.problems += [f"clients.dat: {problem}" for problem in clients.problems]
    _add_names(result, store)
    return result


def channel_overviews(
    store: Datastore,
    known_clients: dict[bytes, pb.ClientInfo],
    *,
    patterns: Sequence[str] = (),
    limits: StoreLimits | None = None,
    workers: int = 2,
) -> Iterator[ChannelOverview]:
    """Reads channels one after the other, as `overview` does; yields each at once.

    `known_clients` are those of `root_overview`, by id.
    """
    now_ns = time.time_ns()

    def look(name: str) -> ChannelOverview:
        return _channel(store, name, known_clients, limits, now_ns)

    yield from ThreadWork(workers).in_order(look, store.matching(patterns), cost=lambda name: store.data_size([name]))


def era(result: Overview) -> str:
    """Returns the releases of the server that an overview looks like, once its channels are known."""
    slices = [each.files for channel in result.channels for each in channel.slices if each.count]
    return era_of(result.server, has_indexes=any(s.index_size > 4 for s in slices), has_slices=bool(slices))


def _server(store: Datastore) -> ServerFile:
    if store.server is None:
        return read_server_info(None, store.crc)
    try:
        with mapped(store.server) as buffer:
            return read_server_info(buffer, store.crc)
    except StoreUnreadableError as error:
        return ServerFile(ServerOutcome.REFUSED, error=error.message)


def _add_names(result: Overview, store: Datastore) -> None:
    result.leftovers = [path.name for path in store.leftovers]
    result.symlinks = [path.name for path in store.symlinks]
    result.foreign = [path.name for path in store.foreign]
    result.raft_logs = [str(path.relative_to(store.path)) for path in store.raft_logs]
    result.witness = store.witness
    folded: defaultdict[str, list[str]] = defaultdict(list)
    for name in store.channel_names:
        folded[name.casefold()].append(name)
    result.case_collisions = [names for names in folded.values() if len(names) > 1]


def _channel(
    store: Datastore,
    name: str,
    known_clients: dict[bytes, pb.ClientInfo],
    limits: StoreLimits | None,
    now_ns: int,
) -> ChannelOverview:
    try:
        files = store.channel(name)
    except StoreUnreadableError as error:
        return ChannelOverview(name, problems=[f": {error.message}"])
    raw, crc = files.raw_name, store.crc
    result = ChannelOverview(name)
    result.slices = [summarise(each, raw, crc) for each in files.slices]
    result.archived = [summarise(each, raw, crc) for each in files.archived]
    filled = [each for each in result.slices if each.count]
    result.first_seq, result.last_seq, result.count, result.bytes = astuple(totals_of(filled))
    result.encrypted = any(each.encrypted for each in filled)
    for each in (*result.slices, *result.archived):
        result.problems += [f"{each.files.name}: {problem}" for problem in each.problems]
    result.problems += [f"{path.name}: the name has no slice number; the server refuses it" for path in files.misnamed]
    if limits:
        result.logical = logical_view(filled, limits.limits_for(name), raw, crc, now_ns=now_ns)
    subs = load_subs(files.subs, crc, files.subs_seen)
    result.problems += [f"subs.dat: {problem}" for problem in subs.problems]
    shown = result.logical or result
    result.subscriptions = SubscriberList(subs.state, known_clients, shown.first_seq, shown.last_seq)
    slices = (*files.slices, *files.archived, *files.lone_indexes)
    others = sum(size_of(path) for path in (files.subs, *files.misnamed) if path)
    result.disk_bytes = sum(each.data_size + each.index_size for each in slices) + others
    return result


class ClientStatus(enum.StrEnum):
    REGISTERED = "registered"  #: it is in clients.dat
    AWAY = "away"  #: it left, and has durables that wait for it
    GHOST = "ghost"  #: it is not in clients.dat, and has subscriptions that need it


@dataclass
class ClientSummary:
    """A client with its subscriptions."""

    id: bytes  #: id as stored
    info: pb.ClientInfo | None = None  #: record in clients.dat; None if there is none
    channels: dict[str, int] = field(default_factory=dict)  #: number of its subscriptions by channel
    pending: int = 0  #: messages sent to it and not acknowledged
    needed: int = 0  #: subscriptions that the server drops or deletes because it does not know the client

    @property
    def subscriptions(self) -> int:
        return sum(self.channels.values())

    @property
    def status(self) -> ClientStatus:
        if self.info is not None:
            return ClientStatus.REGISTERED
        return ClientStatus.GHOST if self.needed else ClientStatus.AWAY


class ClientList:
    """Assigns subscriptions to clients, channel by channel, from `registered` (the clients of clients.dat)."""

    def __init__(self, registered: Iterable[pb.ClientInfo]) -> None:
        self._clients = {info.id: ClientSummary(info.id, info) for info in registered}

    def add(self, channel: ChannelOverview) -> None:
        """Counts the subscriptions of another channel."""
        for each in channel.subscriptions:
            if not (name := each.state.client_id):
                continue
            client = self._clients.setdefault(name, ClientSummary(name))
            client.channels[channel.name] = client.channels.get(channel.name, 0) + 1
            client.pending += len(each.pending)
            client.needed += each.status in (SubStatus.GHOST, SubStatus.ORPHAN)

    def clients(self) -> list[ClientSummary]:
        """Returns the registered clients in their order, then the others by id."""
        others = sorted((each for each in self._clients.values() if each.info is None), key=lambda each: each.id)
        return [each for each in self._clients.values() if each.info is not None] + others
