"""A store for a broker that goes on with it: its channels in the broker's streams, all else in a stream of records.

The names and the records are those of `stantools.nats.channel_streams`. The channels' streams are those of any plan.
The stream of the state (server, clients, subscriptions with what they have pending) is not in the plan, but follows
from the store. It is made when all others are proven: without it a broker has no clients and no durables.

A channel that lacks messages in between is refused. The broker counts on streams without holes: it delivers from a copy
in files, whose sequences have to be whole as well. `salvage --fill-gaps` puts empty messages in, which subscribers get,
as they do from nodes of a NATS Streaming cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property

from stantools.errors import RefusedError
from stantools.format.columns import MessageColumns
from stantools.migration.plan.model import ChannelPart, Level, Note, Plan, StreamPlan, Way
from stantools.migration.source import ChannelSource, StoreSource
from stantools.nats.channel_streams import CHANNEL, CLIENT, MADE, SERVER, SUBSCRIPTION, Names, encode_members
from stantools.notation import counted
from stantools.store.sublog import StoredSubscription
from stantools.streamfiles.batch import Batch

#: Bytes of a record at most, so that nats-servers take it that were not told how large messages may be.
_LARGEST = (1 << 20) - 1024
#: A record's time where no message has one; a stream's first message must have a time.
_SOME_TIME = 1


def find_obstacles(plan: Plan, source: StoreSource) -> Iterator[Note]:
    """Yields what keeps a broker from going on with the streams of a plan.

    Args:
        plan: A plan for a broker.
        source: The store that it was made for.
    """

    def problem(about: str, text: str, remedy: str) -> Note:
        return Note(Level.PROBLEM, about, text, remedy)

    names = Names(plan.broker)
    if (there := os.fsdecode(source.plan.server.cluster_id)) != plan.broker:
        text = f"the store is that of cluster ID {there!r}, and clients connect with that"
        yield problem("", text, f"give --for-broker {there}")
    if plan.way is not Way.ARCHIVE:
        yield problem("", "a broker's streams are restored: published messages get other times", "use `way: archive`")
    for stream in plan.streams:
        part = stream.parts[0]
        name = os.fsencode(part.channel)
        wanted, subject = names.stream(name), os.fsdecode(names.subject(name))
        if unfit := names.problem(name):
            yield problem(stream.name, f"no broker can have it in a stream: {unfit}", "leave it out (`skip: yes`)")
        elif (stream.name, stream.subjects, len(stream.parts)) != (wanted, (subject,), 1):
            text = f"the broker has channel {part.channel!r} in stream {wanted}, with the subject {subject}"
            yield problem(stream.name, text, "plan again, and leave the names as they are")
        if part.messages and (missing := part.last - part.first + 1 - part.messages):
            text = f"{counted(missing, 'message', 'is/are')} missing in it, and a broker's streams have no gaps"
            remedy = (
                "`stantools salvage STORE --fill-gaps --out NEW` puts an empty message in each place (of nodes "
                "`stantools merge NODE NODE… --fill-gaps --out NEW`): take NEW over; or leave the channel out"
            )
            yield problem(stream.name, text, remedy)


class StateRecords:
    """What a broker knows besides messages, one record a message; a `StreamSource`.

    Args:
        plan: A plan for a broker.
        source: The store.
        channels: The channels that go along.
    """

    renumbered = False
    #: No channels: it is of all of them.
    parts: Sequence[tuple[ChannelSource, bytes]] = ()

    def __init__(self, plan: Plan, source: StoreSource, channels: Sequence[ChannelSource]) -> None:
        self._prefix = Names(plan.broker).records.encode()
        self._source = source
        self._channels = channels
        # The same in each run, as the stream of an earlier one is to be recognised.
        times = (part.last_timestamp for stream in plan.streams for part in stream.parts)
        self.time = max(max(times, default=0), _SOME_TIME)

    @cached_property
    def _records(self) -> Sequence[tuple[bytes, bytes]]:
        """Subject and content of each record."""
        return tuple(self._encoded())

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self._records)

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(len(content) for _, content in self._records)

    @property
    def first(self) -> int:
        """The sequence of the first one."""
        return 1

    @property
    def last(self) -> int:
        """The sequence of the last one."""
        return self.count

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Batch]:
        """Yields the records with sequences above `after`, up to `until`; each has a subject of its own.

        Raises:
            RefusedError: There are too many members of a queue group for one record.
        """
        for sequence, (subject, content) in enumerate(self._records[after:until], after + 1):
            columns = MessageColumns(1)
            columns.sequence[0], columns.timestamp[0], columns.data_size[0] = sequence, self.time, len(content)
            yield Batch(b"", self._prefix + subject, memoryview(content), columns, columns.sequence)

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        """Returns the sequences as they are."""
        return list(sequences)

    def _encoded(self) -> Iterator[tuple[bytes, bytes]]:
        yield SERVER, self._source.plan.server.SerializeToString()
        for client in self._source.clients:
            yield CLIENT + client.id, client.SerializeToString()
        for channel in self._channels:
            yield CHANNEL + channel.raw_name, MADE
            for members in _units(channel.subscriptions):
                subject = SUBSCRIPTION + channel.raw_name + b".%d" % members[0].state.id
                last = max(max(each.state.last_sent, *each.pending, 0) for each in members)
                try:
                    yield subject, encode_members(members, last, _LARGEST)
                except ValueError as problem:
                    raise RefusedError(f"channel {channel.name}: {problem}", "leave the channel out") from problem


def _units(subscriptions: Sequence[StoredSubscription]) -> Iterator[list[StoredSubscription]]:
    """Yields subscriptions that share a record: each alone, and all members of a queue group."""
    groups: dict[bytes, list[StoredSubscription]] = {}
    for each in subscriptions:
        if each.state.q_group:
            groups.setdefault(each.state.q_group, []).append(each)
        else:
            yield [each]
    yield from groups.values()


def plan_state(plan: Plan, records: StateRecords) -> StreamPlan:
    """Returns the stream of the state, which is not in the plan itself.

    Args:
        plan: A plan for a broker.
        records: What the stream is to hold.
    """
    replicas = max((stream.settings.get("num_replicas", 1) for stream in plan.streams), default=1)
    settings = Names(plan.broker, replicas).state_config()
    name, subjects = settings.pop("name"), tuple(settings.pop("subjects"))
    part = ChannelPart("", subjects[0], records.count, 1, records.last, records.size)
    return StreamPlan(name, subjects, (part,), settings, created_ns=records.time)
