"""Publishes: the frames of one socket read are staged for a commit, or refused.

Facts: streaming-protocol.md section 11.

Staged messages are appended to the stores; their acknowledgements wait for a commit (`commits`). The store creates a
new channel with the commit. If it cannot, the acknowledgements carry the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from broker import log
from broker.stores.interface import FlushOutcome, StorageError
from broker.streaming import request_errors
from broker.streaming.commits import SHARE, Commits
from broker.streaming.names import text, valid_channel
from broker.streaming.ports import Role
from broker.streaming.publisher_acks import ChannelBatch, CommitBatch
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

#: rows of the table that the kernels fill
_TABLE_ROWS: Final = 4096
#: Messages of a batch by default, as in the original. A default batch may grow, in messages and bytes: messages that
#: arrive during a sync are synced together, and the messages of one read are not split.
_DEFAULT_BATCH: Final = 1024
_MAX_BATCH: Final = 4096
_MAX_BATCH_SIZE: Final = 16 << 20
_NO_REFUSAL: Final = (PublishStop.GOOD, PublishStop.FULL)
#: most bytes of a message besides data, reply and channel: sequence, time, and the headers of the fields
_FIELD_OVERHEAD: Final = 40


class PublishRules:
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
        self._batch_size = _MAX_BATCH if size == _DEFAULT_BATCH else max(size, 1)
        self._exact = size != _DEFAULT_BATCH
        self._clients = clients
        self._channels = channels
        self._commits = commits
        self._commit_soon = commits.commit_soon
        self._waiting = waiting
        self._table = publish_table(min(self._batch_size, _TABLE_ROWS))
        self._places = np.arange(len(self._table), dtype=np.int32)
        #: bytes before the channel in the NATS subject of a publish; negative if the channel may differ
        self.prefix = -1

    def receive(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        """Handles frames of the publish subjects: stages them, and commits full batches."""
        commits = self._commits
        while begin < end:
            stop = min(end, begin + max(self._batch_size - commits.staged, 1)) if self._exact else end
            begin += self._stage(buffer, frames, begin, stop)
            if commits.staged >= self._batch_size or (
                commits.size > _MAX_BATCH_SIZE and commits.staged >= _DEFAULT_BATCH
            ):
                commits.commit(SHARE)
        if commits.staged:
            self._commit_soon()

    def _stage(self, buffer: Buffer, frames: Frames, begin: int, end: int) -> int:
        """Stages rows up to and including the first doubtful one. Returns the number of rows handled."""
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
        taken = publishes.taken
        if taken:
            self._statistics.in_msgs += taken
            self._statistics.in_bytes += publishes.size
            traced = self._trace(publishes) if log.STREAMING.tracing else ()
            now = self._clock.wall()
            groups, singles = publishes.groups, publishes.singles
            portions: list[ChannelBatch] = []
            max_size = min(self._bus.deliverable, self._store.largest) - REDELIVERED_SIZE
            large = publishes.size + _FIELD_OVERHEAD > max_size
            if singles and not large and not traced:
                singles = self._add_singles(buffer, singles, now)
            if singles:
                groups = [*groups, *[ChannelPublishes(number, self._places[row : row + 1]) for number, row in singles]]
            if large:
                groups, portions = self._refuse_large(groups, max_size)
            for number, rows in groups:
                portions.append(self._append(buffer, number, rows, now))
            self._commits.stage(CommitBatch(publishes.acks, publishes.runs, portions, traced), taken, publishes.size)
        if publishes.status in _NO_REFUSAL:
            return taken
        request = next(requests(buffer, frames, begin + taken, begin + taken + 1))
        # A row that only lacked its channel is read again, now that the channel exists.
        return taken if self._examine(request, publishes.status) else taken + 1

    def _refuse_large(
        self, groups: Sequence[ChannelPublishes], max_size: int
    ) -> tuple[list[ChannelPublishes], list[ChannelBatch]]:
        """Refuses messages too large for the store or for delivery. Returns the other rows, and the refused ones."""
        valid: list[ChannelPublishes] = []
        refused: list[ChannelBatch] = []
        for number, rows in groups:
            channel = self._channels.numbered[number]
            table = self._table[rows].astype(np.int64)
            room = max_size - _FIELD_OVERHEAD - len(channel.name) - table[:, REPLY_SIZE]
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
                valid.append(ChannelPublishes(number, rows[~large]))
        return valid, refused

    def _add_singles(self, buffer: Buffer, singles: list[tuple[int, int]], now: int) -> list[tuple[int, int]]:
        """Adds single messages directly to the stores of their channels, where possible. Returns the rest.

        A message is staged instead if it follows others that are not visible yet, or for queue groups.
        """
        numbered = self._channels.numbered
        others: list[tuple[int, int]] = []
        stores: list[tuple[tuple[int, int], Channel, SingleAppendStore]] = []
        wanted: list[tuple[int, bytes, int, int]] = []
        for each in singles:
            number, row = each
            channel = numbered[number]
            store = channel.single_store
            if store is None or channel.groups or (last := store.last) != channel.visible:
                others.append(each)
                continue
            if now > channel.timestamp:
                channel.timestamp = now
            wanted.append((row, channel.name, last + 1, channel.timestamp))
            stores.append((each, channel, store))
        if not wanted:
            return others
        try:
            records = encode_lone_records(buffer, self._table, wanted, self._crc)
        except ValueError:
            return singles
        added = self._commits.singles
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
        """Handles a publish that the kernel does not accept. Returns True if it only lacked its channel."""
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
            refuse = partial(self._count_and_refuse, request, message, request_errors.INVALID_PUBLISH)
            if self._waiting is not None and self._waiting.add(
                message.client_id, message.conn_id, len(request.payload), partial(self._examine, request), refuse
            ):
                return False
            log.STREAMING.error("Received invalid client publish message %s", _one_line(message))
            return refuse()
        if self.prefix >= 0 and request.subject[self.prefix :] != message.subject:
            log.STREAMING.warning(
                "[Client:%s] Refused a message for channel %s that was published to subject %s",
                text(message.client_id),
                text(message.subject),
                text(request.subject),
            )
            return self._count_and_refuse(request, message, request_errors.INVALID_PUBLISH)
        try:
            self._commits.obtain(message.subject)
        except (RequestRefusedError, StorageError) as error:
            log.STREAMING.error(
                "[Client:%s] Error processing message for subject %s: %s",
                text(message.client_id),
                text(request.subject),
                error,
            )
            return self._count_and_refuse(request, message, text_of(error))
        if status is PublishStop.UNKNOWN_CHANNEL:
            return True
        self._stage_alone(request, message)
        return False

    def _stage_alone(self, request: StreamingRequest, message: protocol.PubMsg) -> None:
        """Stages a valid message with an unusual encoding, in its usual encoding."""
        payload = message.SerializeToString()
        reply, start = len(request.subject), len(request.subject) + len(request.reply)
        frames = frame_table(1)
        frames[0] = (0, reply, reply, len(request.reply), 0, start, len(payload), -1)
        done = self._stage(request.subject + request.reply + payload, frames, 0, 1)
        assert done == 1, "the usual encoding is plainly good"
        # The statistics count the message as received, not in its usual encoding.
        self._statistics.in_bytes += len(request.payload) - int(frames[0][PAYLOAD_SIZE])
        if self._commits.staged:
            self._commit_soon()

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
        for row in range(publishes.taken):
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
