"""Subscriptions become consumers: which are merged, their positions and configuration.

    streaming                                        JetStream
    durable (client, durable name)                   a durable consumer
    durable queue group: its members and its shadow  one durable consumer that all workers share
    not durable, queue group that is not durable     nothing: it ends with its client's connection

Facts: jetstream-migration.md sections 9 and 11; filestore.md sections 3.4, 4.2 and 4.3; streaming-protocol.md
sections 17 to 19.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stantools.migration.plan.fields import CONSUMER_DEFAULTS
from stantools.migration.plan.migration_plan import (
    ConsumerKind,
    ConsumerPlan,
    ConsumerProgress,
    OmittedPart,
    Remark,
    RemarkLevel,
)
from stantools.nats.stream_names import choose, safe_name, with_hash
from stantools.notation import counted
from stantools.store.ranges import Ranges
from stantools.store.sublog import StoredSubscription

if TYPE_CHECKING:
    from stantools.migration.stream_source import StreamSource

_SECOND = 1_000_000_000
_ACK_WAIT = 30  # seconds; for subscriptions without one


@dataclass(frozen=True)
class Durable:
    """A durable or durable queue group of a channel, merged from its subscriptions."""

    channel: str
    name: str
    client: str  #: owner, "" for a queue group
    group: str  #: queue group, "" for a plain durable
    max_in_flight: int  #: limit of unacknowledged messages; for a group, the sum of its members
    ack_wait_ns: int  #: time until redelivery
    position: ConsumerProgress
    members: int = 1  #: number of merged subscriptions

    def __str__(self) -> str:
        if self.group:
            return f"durable {self.name!r} of queue group {self.group!r} on {self.channel!r}"
        return f"durable {self.name!r} of client {self.client!r} on {self.channel!r}"


@dataclass
class ChannelDurables:
    """The subscriptions of one channel: durables, which become consumers, and the rest."""

    durables: list[Durable] = field(default_factory=list)
    left_out: list[OmittedPart] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)


def sort_subscriptions(
    channel: str, subscriptions: Iterable[StoredSubscription], sequences: Ranges, last: int
) -> ChannelDurables:
    """Sorts the subscriptions of a channel and merges those of one durable.

    `subscriptions` come from a salvage plan, in which ghosts are already merged into their group; `last` is the
    channel's last sequence.
    """
    result = ChannelDurables()
    plain: dict[tuple[bytes, bytes], list[StoredSubscription]] = defaultdict(list)
    queues: dict[bytes, list[StoredSubscription]] = defaultdict(list)
    others: list[StoredSubscription] = []
    for subscription in subscriptions:
        state = subscription.state
        if state.durable_name:
            plain[state.client_id, state.durable_name].append(subscription)
        elif state.q_group and state.is_durable:
            queues[state.q_group].append(subscription)
        else:
            others.append(subscription)
    for subscription in others:
        # A subscription that is not durable but names `durable:group` as its group is a member of that group.
        if subscription.state.q_group in queues:
            queues[subscription.state.q_group].append(subscription)
    _leave_out(channel, [s for s in others if s.state.q_group not in queues], result)
    merger = _Merger(channel, sequences, last, result)
    for same in plain.values():
        merger.add_plain(same)
    for members in queues.values():
        merger.add_group(members)
    result.durables.sort(key=lambda durable: (durable.group, durable.name, durable.client))
    return result


def _leave_out(channel: str, others: list[StoredSubscription], result: ChannelDurables) -> None:
    groups: dict[bytes, list[StoredSubscription]] = defaultdict(list)
    for subscription in others:
        state = subscription.state
        if state.q_group:
            groups[state.q_group].append(subscription)
            continue
        detail = (
            f"subscription {state.id} of client {os.fsdecode(state.client_id)!r} is not durable: it ends with its "
            f"connection (last sent {state.last_sent}, {len(subscription.pending)} not acknowledged)"
        )
        result.left_out.append(OmittedPart("subscription", channel, detail))
    for group, members in groups.items():
        waiting = len(set[int]().union(*(member.pending for member in members)))
        detail = (
            f"queue group {os.fsdecode(group)!r} is not durable: it ends with the connections of its members "
            f"({len(members)} there, last sent {max(m.state.last_sent for m in members)}, {waiting} not acknowledged)"
        )
        result.left_out.append(OmittedPart("queue group", channel, detail, len(members)))


class _Merger:
    def __init__(self, channel: str, sequences: Ranges, last: int, result: ChannelDurables) -> None:
        self._channel = channel
        self._sequences = sequences
        self._last = last
        self._result = result

    def add_plain(self, same: list[StoredSubscription]) -> None:
        # Two records of one durable are an accident; the server takes either. The lower position loses no message.
        sent = min(s.state.last_sent for s in same)
        state = same[0].state
        name, client = os.fsdecode(state.durable_name), os.fsdecode(state.client_id)
        durable = self._merge(same, sent, name, client, "", max(s.state.max_in_flight for s in same))
        if len(same) > 1:
            text = f"{durable} is stored {len(same)} times: it continues after {sent}, the lowest of their positions"
            self._note(RemarkLevel.WARNING, text)

    def add_group(self, members: list[StoredSubscription]) -> None:
        name, _, group = os.fsdecode(members[0].state.q_group).partition(":")
        if not group:
            # No server writes a group without durable name; the whole text is then the group's name.
            group = name
        present = [m for m in members if m.state.client_id] or members
        flight = sum(max(m.state.max_in_flight, 0) for m in present)
        self._merge(members, max(m.state.last_sent for m in members), name, "", group, flight)

    def _merge(
        self, parts: list[StoredSubscription], sent: int, name: str, client: str, group: str, max_in_flight: int
    ) -> Durable:
        delivered = min(sent, self._last)
        pending = set[int]().union(*(part.pending for part in parts))
        waiting = np.fromiter((p for p in pending if p <= delivered), dtype=np.uint64)
        there = self._sequences.select(waiting)
        position = ConsumerProgress.of(delivered, waiting[there].tolist())
        longest = max(part.state.ack_wait_in_secs for part in parts)
        ack_wait = longest if longest > 0 else _ACK_WAIT
        durable = Durable(self._channel, name, client, group, max_in_flight, ack_wait * _SECOND, position, len(parts))
        self._result.durables.append(durable)
        if sent > self._last:
            text = f"{durable} was sent messages up to {sent}, the channel's last is {self._last}: it continues there"
            self._note(RemarkLevel.WARNING, text)
        if gone := len(waiting) - int(np.count_nonzero(there)):
            text = f"{durable}: {counted(gone, 'message')} unacknowledged, but no longer in the channel"
            self._note(RemarkLevel.INFO, text)
        return durable

    def _note(self, level: RemarkLevel, text: str) -> None:
        self._result.notes.append(Remark(level, self._channel, text))


def stream_position(consumer: ConsumerPlan, source: StreamSource) -> ConsumerProgress:
    """Returns a consumer's position in sequences of its stream."""
    if not source.renumbered:
        return consumer.position
    return consumer.position.translated(partial(source.position, os.fsencode(consumer.channel)))


def plan_consumers(
    durables: Sequence[tuple[Durable, ConsumerKind]], stream: str, filters: Sequence[str], push_prefix: str
) -> list[ConsumerPlan]:
    """Returns the consumers of one stream, sorted by name.

    `filters` has one filter subject for each durable, "" for the whole stream. Deliver subjects of push consumers
    are `push_prefix.STREAM.CONSUMER`.
    """
    names = choose([_candidates(durable) for durable, _ in durables])
    consumers = []
    for (durable, kind), name, subject in zip(durables, names, filters, strict=True):
        text = f"NATS Streaming {durable}"
        settings = {
            **CONSUMER_DEFAULTS,
            "description": text.encode("utf-8", "replace").decode()[:1000],
            "ack_wait": durable.ack_wait_ns,
            "max_ack_pending": max(durable.max_in_flight, len(durable.position.pending), 1),
        }
        if subject:
            settings["filter_subject"] = subject
        if kind is ConsumerKind.PUSH:
            settings["deliver_subject"] = f"{push_prefix}.{stream}.{name}"
            if durable.group:
                # Some clients use the name of the queue group as the name of the consumer, so both are the same.
                settings["deliver_group"] = name
        consumers.append(
            ConsumerPlan(
                name,
                durable.channel,
                durable.name,
                durable.group,
                durable.client,
                durable.members,
                kind,
                settings,
                durable.position,
            )
        )
    return sorted(consumers, key=lambda consumer: consumer.name)


def _candidates(durable: Durable) -> list[str]:
    """Returns possible names of the consumer, best first."""
    if durable.group:
        wanted = [durable.group, f"{durable.name}_{durable.group}", f"{durable.channel}_{durable.name}_{durable.group}"]
    else:
        wanted = [
            durable.name,
            f"{durable.client}_{durable.name}",
            f"{durable.channel}_{durable.client}_{durable.name}",
        ]
    key = "\0".join((durable.channel, durable.client, durable.name, durable.group))
    names = [safe_name(text) for text in wanted]
    return [*names, with_hash(names[0], key, 16)]
