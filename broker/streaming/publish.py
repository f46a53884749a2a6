"""Publishes: from the frames of one socket read to what is staged for a commit, or refused.

Facts: streaming-protocol.md section 11.

What comes in is staged: appended to the stores, with the acknowledgements held back until a commit (`commits`).
The store makes a new channel with the commit; whoever publishes to one that cannot be made learns of it by the
acknowledgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from broker import log
from broker.stores.interface import FlushOutcome, StorageError
from broker.streaming import request_errors
from broker.streaming.commits import SHARE, ChannelBatch, CommitBatch, Commits
from broker.streaming.names import text, valid_channel
from broker.streaming.ports import Role
from broker.streaming.publishes.columns import (
    CHANNEL,
    CLIENT,
    DATA_SIZE,
    REPLY_SIZE,
    ChannelPublishes,
    PublishStop,
    publish_table,
)
from broker.streaming.publishes.fields import REDELIVERED_SIZE, publish_ack
from broker.streaming.publishes.kernels import encode_lone_records, encode_records, read_publishes
from broker.streaming.request_errors import RequestRefusedError, text_of
from broker.streaming.requests import StreamingRequest, decode, is_control, requests
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.nats.frames import PAYLOAD_SIZE, frame_table

if TYPE_CHECKING:
    from broker.stores.interface import SingleAppendStore
    from broker.streaming.context import Context
    from broker.streaming.partitions import PendingConnects
    from broker.streaming.publishes.columns import PublishColumns, Rows
    from broker.streaming.registry import Channels, Clients
    from broker.streaming.state import Channel
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

#: Rows of the table that the kernels fill.
_TABLE_ROWS: Final = 4096
#: Messages of a batch when nobody has said how many (the original's number). It may then become larger, in messages and
#: in bytes: what waits while files are synced is synced together. What was read together is not divided then.
_USUAL: Final = 1024
_GROWN: Final = 4096
_GROWN_SIZE: Final = 16 << 20
_FINE: Final = (PublishStop.GOOD, PublishStop.FULL)
#: What a message has at most besides data, reply and channel: sequence, time, and what is in front of each field.
_FIELDS: Final = 40


class PublishRules:
    """Stages publishes.

    Args:
        context: The world.
        commits: Commits what is staged.
        waiting: Where publishes of clients that are not known wait, if they may (partitioning).
    """

    def __init__(
        self,
        context: Context,
        clients: Clients,
        channels: Channels,
        commits: Commits,
        waiting: PendingConnects | None = None,
    ) -> None:
        self._bus = context.bus
        self._clock = context.clock
        self._statistics = context.statistics
        self._store = context.store
        self._crc = context.store.crc
        size = context.options.io_batch_size
        self._batch_size = _GROWN if size == _USUAL else max(size, 1)
        self._exact = size != _USUAL
        self._clients = clients
        self._channels = channels
        self._commits = commits
        self._waiting = waiting
        self._table = publish_table(min(self._batch_size, _TABLE_ROWS))
        self._places = np.arange(len(self._table), dtype=np.int32)
        #: What precedes the channel in the NATS subject of a publish, in bytes; negative if that may be another.
        self.prefix = -1

    def receive(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        """Handler of the publish subjects: takes everything up to staging; commits whenever a batch is full."""
        commits = self._commits
        while begin < end:
            stop = min(end, begin + max(self._batch_size - commits.staged, 1)) if self._exact else end
            begin += self._stage(buffer, frames, begin, stop)
            if commits.staged >= self._batch_size or (commits.size > _GROWN_SIZE and commits.staged >= _USUAL):
                commits.commit(SHARE)
        if commits.staged:
            commits.commit_soon()

    def _stage(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> int:
        """Stages rows up to and with the first one that needs a closer look. Returns how many were dealt with."""
        publishes = read_publishes(
            buffer,
            frames,
            begin,
            end,
            self._clients.names,
            self._clients.connections,
            self._channels.names,
            self._table,
            self.prefix,
        )
        taken = publishes.count
        if taken:
            self._statistics.in_msgs += taken
            self._statistics.in_bytes += publishes.size
            traced = self._trace(publishes) if log.STREAMING.isEnabledFor(log.TRACE) else ()
            now = self._clock.wall()
            groups, lone = publishes.groups, publishes.lone
            portions: list[ChannelBatch] = []
            most = min(self._bus.deliverable, self._store.largest) - REDELIVERED_SIZE
            large = publishes.size + _FIELDS > most
            if lone and not large and not traced:
                lone = self._add_lone(buffer, lone, now)
            if lone:
                groups = [*groups, *[ChannelPublishes(number, self._places[row : row + 1]) for number, row in lone]]
            if large:
                groups, portions = self._sort_out(groups, most)
            portions += [self._append(buffer, group.channel, group.rows, now) for group in groups]
            self._commits.stage(CommitBatch(publishes.acks, publishes.runs, portions, traced), taken, publishes.size)
        if publishes.status in _FINE:
            return taken
        request = next(requests(buffer, frames, begin + taken, begin + taken + 1))
        # A row that only lacked its channel is read again, now that there is one.
        return taken if self._examine(request, publishes.status) else taken + 1

    def _sort_out(
        self, groups: Sequence[ChannelPublishes], most: int
    ) -> tuple[list[ChannelPublishes], list[ChannelBatch]]:
        """Refuses what would be too large for the store, or to be delivered. Returns the other rows, and these."""
        fine: list[ChannelPublishes] = []
        refused: list[ChannelBatch] = []
        for number, rows in groups:
            channel = self._channels.numbered[number]
            table = self._table[rows].astype(np.int64)
            room = most - _FIELDS - len(channel.name) - table[:, REPLY_SIZE]
            large = table[:, DATA_SIZE] > room
            for row in np.flatnonzero(large).tolist():
                error = request_errors.too_large(int(table[row, DATA_SIZE]), int(room[row]), self._bus.max_payload)
                refused.append(ChannelBatch(channel, rows[row : row + 1], outcome=FlushOutcome.REFUSED, error=error))
                log.STREAMING.error(
                    "[Client:%s] Error processing message for subject %s: %s",
                    text(self._clients.numbered[int(table[row, CLIENT])].id),
                    text(channel.name),
                    text(error),
                )
            if not large.all():
                fine.append(ChannelPublishes(number, rows[~large]))
        return fine, refused

    def _add_lone(self, buffer: Buffer, lone: list[tuple[int, int]], now: int) -> list[tuple[int, int]]:
        """Adds what came alone to its channel, where that may be. Returns the rest."""
        numbered = self._channels.numbered
        others: list[tuple[int, int]] = []
        stores: list[tuple[tuple[int, int], Channel, SingleAppendStore]] = []
        wanted: list[tuple[int, bytes, int, int]] = []
        for each in lone:
            channel = numbered[each[0]]
            store = channel.alone
            if store is None:
                others.append(each)
                continue
            if now > channel.timestamp:
                channel.timestamp = now
            wanted.append((each[1], channel.name, store.last + 1, channel.timestamp))
            stores.append((each, channel, store))
        if not wanted:
            return others
        try:
            records = encode_lone_records(buffer, self._table, wanted, self._crc)
        except ValueError:
            return lone
        added = self._commits.lone
        for (each, channel, store), record in zip(stores, records, strict=True):
            if store.add(record):
                added.append((channel, record))
            else:
                others.append(each)
        return others

    def _append(self, buffer: Buffer, number: int, rows: Rows, now: int) -> ChannelBatch:
        channel = self._channels.numbered[number]
        messages = channel.messages
        portion = ChannelBatch(channel, rows)
        last = messages.last
        if now > channel.timestamp:
            channel.timestamp = now
        try:
            records = encode_records(buffer, self._table, rows, channel.name, last + 1, channel.timestamp, self._crc)
            messages.append(records)
        except (StorageError, ValueError) as error:
            log.STREAMING.error(
                "[Client:%s] Error processing message for subject %s: %s",
                text(self._clients.numbered[int(self._table[rows[0]][0])].id),
                text(channel.name),
                error,
            )
            portion.outcome, portion.error = FlushOutcome.REFUSED, str(error).encode(errors="replace")
            if messages.last < last:
                self._commits.lost(channel, error)
        else:
            self._commits.appended(portion, records)
        return portion

    def _examine(self, request: StreamingRequest, status: PublishStop | None = None) -> bool:
        """Deals with a publish that is not plainly good.

        Args:
            request: The publish.
            status: Why it is not; None if it is not known, as nobody looked yet.

        Returns:
            True if nothing but its channel was missing, and is there now; only if it is said to be that.
        """
        try:
            message = decode(protocol.PubMsg, request.payload)
        except gogo.DecodeError as error:
            if not is_control(request.payload):
                log.STREAMING.error("Unable to unmarshal PubMsg: %s", error)
                self._refuse(request, b"", request_errors.INVALID_PUBLISH)
            return False
        if not message.guid or not valid_channel(message.subject):
            log.STREAMING.error("Received invalid client publish message %s", _one_line(message))
            return self._count_and_refuse(request, message, request_errors.INVALID_PUBLISH)
        if self._clients.publisher(message.client_id, message.conn_id) is None:
            if self._waiting is not None and self._waiting.add(
                message.client_id, message.conn_id, len(request.payload), partial(self._waited, request, message)
            ):
                return False
            log.STREAMING.error("Received invalid client publish message %s", _one_line(message))
            return self._count_and_refuse(request, message, request_errors.INVALID_PUBLISH)
        if self.prefix >= 0 and request.subject[self.prefix :] != message.subject:
            log.STREAMING.warning(
                "[Client:%s] Refused a message for channel %s that was published to subject %s",
                text(message.client_id),
                text(message.subject),
                text(request.subject),
            )
            return self._count_and_refuse(request, message, request_errors.INVALID_PUBLISH)
        try:
            channel = self._channels.obtain(message.subject)
        except (RequestRefusedError, StorageError) as error:
            log.STREAMING.error(
                "[Client:%s] Error processing message for subject %s: %s",
                text(message.client_id),
                text(request.subject),
                error,
            )
            return self._count_and_refuse(request, message, text_of(error))
        if channel.making is not None:
            # Even if the message is refused.
            self._commits.touch(channel)
        if status is PublishStop.UNKNOWN_CHANNEL:
            return True
        self._stage_alone(request, message)
        return False

    def _waited(self, request: StreamingRequest, message: protocol.PubMsg, came: bool) -> None:
        """Goes on with a publish that has waited for its client, in vain or not."""
        if came:
            self._examine(request)
        else:
            self._count_and_refuse(request, message, request_errors.INVALID_PUBLISH)

    def _stage_alone(self, request: StreamingRequest, message: protocol.PubMsg) -> None:
        """Stages a message that is fine, only oddly encoded, as its usual encoding."""
        payload = message.SerializeToString()
        reply, start = len(request.subject), len(request.subject) + len(request.reply)
        frames = frame_table(1)
        frames[0] = (0, reply, reply, len(request.reply), 0, start, len(payload), -1)
        done = self._stage(request.subject + request.reply + payload, frames, 0, 1)
        assert done == 1, "the usual encoding is plainly good"
        # What was counted is the usual encoding, what came is another.
        self._statistics.in_bytes += len(request.payload) - int(frames[0][PAYLOAD_SIZE])
        if self._commits.staged:
            self._commits.commit_soon()

    def _count_and_refuse(self, request: StreamingRequest, message: protocol.PubMsg, error: bytes) -> bool:
        self._statistics.in_msgs += 1
        self._statistics.in_bytes += len(request.payload)
        self._refuse(request, message.guid, error)
        return False

    def _refuse(self, request: StreamingRequest, guid: bytes, error: bytes) -> None:
        self._bus.publish(Role.SEND, request.reply, publish_ack(guid, error))

    def _trace(self, publishes: PublishColumns) -> list[tuple[str, str, str]]:
        traced = []
        clients, channels = self._clients.numbered, self._channels.numbered
        for row in range(publishes.count):
            client, channel = self._table[row][CLIENT], self._table[row][CHANNEL]
            guid = protocol.PubAck.FromString(publishes.acks.payload(row)).guid
            names = text(clients[int(client)].id), text(channels[int(channel)].name), text(guid)
            log.STREAMING.log(log.TRACE, "[Client:%s] Received message from publisher subj=%s guid=%s", *names)
            traced.append(names)
        return traced


def _one_line(message: protocol.PubMsg) -> str:
    """Returns a message as text, without its data."""
    shown = [
        f'{name}:"{text(value)}"'
        for name, value in (
            ("clientID", message.client_id),
            ("guid", message.guid),
            ("subject", message.subject),
            ("connID", message.conn_id),
        )
        if value
    ]
    return " ".join(shown)
