"""A store for a broker that takes it over: channels in the broker's streams, everything else in a stream of records.

Names and records are those of `stantools.nats.channel_streams`. The channels' streams are those of any plan. The
stream of the state (server, clients, subscriptions with pending messages) is not in the plan, but derived from the
store. It is made after all others are proven: without it a broker has no clients and no durables.

A channel with gaps is refused. The broker requires streams without gaps: it delivers from a copy in files with
consecutive sequences. `salvage --fill-gaps` inserts empty messages, which subscribers receive, as from nodes of a
NATS Streaming cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property

from stantools.errors import RefusedError
from stantools.format.message_batch import MessageBatch
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import ChannelPart, MigrationPlan, Remark, RemarkLevel, StreamPlan
from stantools.migration.source import ChannelSource, StoreSource
from stantools.nats.channel_streams import CHANNEL, CLIENT, MADE, SERVER, SUBSCRIPTION, StreamNames, encode_members
from stantools.notation import counted
from stantools.store.sublog import StoredSubscription

#: limit of a record in bytes, below the default max_payload of a nats-server
_LARGEST = (1 << 20) - 1024
#: time of records without any message in the store; a stream's first message needs a time
_SOME_TIME = 1


def find_obstacles(plan: MigrationPlan, source: StoreSource) -> Iterator[Remark]:
    """Yields the problems of a broker with the streams of a plan."""

    def problem(about: str, text: str, remedy: str) -> Remark:
        return Remark(RemarkLevel.PROBLEM, about, text, remedy)

    names = StreamNames(plan.broker)
    if (there := os.fsdecode(source.plan.server.cluster_id)) != plan.broker:
        text = f"the store belongs to cluster ID {there!r}, and clients connect with that"
        yield problem("", text, f"use --for-broker {there}")
    if plan.way is not LoadMethod.ARCHIVE:
        yield problem(
            "", "a broker's streams must be restored: published messages get other times", "use `way: archive`"
        )
    for stream in plan.streams:
        part = stream.parts[0]
        name = os.fsencode(part.channel)
        wanted, subject = names.stream(name), os.fsdecode(names.subject(name))
        if unfit := names.problem(name):
            yield problem(stream.name, f"a broker cannot hold it in a stream: {unfit}", "exclude it (`skip: yes`)")
        elif (stream.name, stream.subjects, len(stream.parts)) != (wanted, (subject,), 1):
            text = f"the broker holds channel {part.channel!r} in stream {wanted}, with the subject {subject}"
            yield problem(stream.name, text, "plan again, and keep the names")
        if part.messages and (missing := part.last - part.first + 1 - part.messages):
            text = f"{counted(missing, 'message', 'is/are')} missing, but a broker's streams must not have gaps"
            remedy = (
                "`stantools salvage STORE --fill-gaps --out NEW` puts an empty message in each place (of nodes "
                "`stantools merge NODE NODE… --fill-gaps --out NEW`): migrate NEW; or exclude the channel"
            )
            yield problem(stream.name, text, remedy)


class BrokerStateStream:
    """A broker's state besides messages, one record per message; a `StreamSource`.

    `channels` are the migrated ones.
    """

    renumbered = False
    #: the state belongs to all channels, not to single ones
    parts: Sequence[tuple[ChannelSource, bytes]] = ()

    def __init__(self, plan: MigrationPlan, source: StoreSource, channels: Sequence[ChannelSource]) -> None:
        self._prefix = StreamNames(plan.broker).records.encode()
        self._source = source
        self._channels = channels
        # equal in each run, so that the stream of an earlier run is recognised
        times = (part.last_timestamp for stream in plan.streams for part in stream.parts)
        self.time = max(max(times, default=0), _SOME_TIME)

    @cached_property
    def _records(self) -> Sequence[tuple[bytes, bytes]]:
        return tuple(self._encoded())

    @property
    def count(self) -> int:
        return len(self._records)

    @property
    def size(self) -> int:
        return sum(len(content) for _, content in self._records)

    @property
    def first(self) -> int:
        return 1

    @property
    def last(self) -> int:
        return self.count

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[MessageBatch]:
        """Yields the records with sequences in (after, until]; each has its own subject.

        Raises RefusedError if a queue group has too many members for one record.
        """
        for sequence, (subject, content) in enumerate(self._records[after:until], after + 1):
            yield MessageBatch.of_payload(sequence, self.time, content, self._prefix + subject)

    def position(self, channel: bytes, sequences: Sequence[int]) -> list[int]:
        return list(sequences)

    def _encoded(self) -> Iterator[tuple[bytes, bytes]]:
        yield SERVER, self._source.plan.server.SerializeToString()
        for client in self._source.plan.clients:
            yield CLIENT + client.id, client.SerializeToString()
        for channel in self._channels:
            yield CHANNEL + channel.raw_name, MADE
            for members in _units(channel.subscriptions):
                subject = SUBSCRIPTION + channel.raw_name + b".%d" % members[0].state.id
                last = max(max(each.state.last_sent, *each.pending, 0) for each in members)
                try:
                    yield subject, encode_members(members, last, _LARGEST)
                except ValueError as problem:
                    raise RefusedError(f"channel {channel.name}: {problem}", "exclude the channel") from problem


def _units(subscriptions: Sequence[StoredSubscription]) -> Iterator[list[StoredSubscription]]:
    """Yields subscriptions that share a record: all members of a queue group, or a single one."""
    groups: dict[bytes, list[StoredSubscription]] = {}
    for each in subscriptions:
        if each.state.q_group:
            groups.setdefault(each.state.q_group, []).append(each)
        else:
            yield [each]
    yield from groups.values()


def plan_state(plan: MigrationPlan, records: BrokerStateStream) -> StreamPlan:
    """Returns the stream of the state, which is not in the plan itself."""
    replicas = max((stream.settings.get("num_replicas", 1) for stream in plan.streams), default=1)
    settings = StreamNames(plan.broker, replicas).state_config()
    name, subjects = settings.pop("name"), tuple(settings.pop("subjects"))
    part = ChannelPart("", subjects[0], records.count, 1, records.last, records.size)
    return StreamPlan(name, subjects, (part,), settings, created_ns=records.time)
