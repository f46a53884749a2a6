"""Subscription requests: new subscriptions, resumed durables, queue groups.

Facts: streaming-protocol.md sections 12, 13 and 17-19.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from broker import log
from broker.stores.interface import StorageError
from broker.streaming import request_errors
from broker.streaming.names import durable_key, text, valid_channel
from broker.streaming.ports import Role
from broker.streaming.request_errors import RequestRefusedError, text_of
from broker.streaming.requests import decode
from broker.streaming.state import MAKING, NEW, RESUMED, STARTED, ChannelSubscription, QueueGroup, log_text
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb
from stantools.format.quoting import quote

if TYPE_CHECKING:
    from broker.streaming.commits import Commits
    from broker.streaming.context import Context
    from broker.streaming.inflight import Acknowledgements, DeliveryQueue
    from broker.streaming.partitions import Partitions
    from broker.streaming.registry import Channels, Clients
    from broker.streaming.requests import StreamingRequest
    from broker.streaming.state import Channel, StreamingSession
    from broker.streaming.unsubscribe import UnsubscribeRules


class SubscribeRules:
    def __init__(
        self,
        context: Context,
        clients: Clients,
        channels: Channels,
        acknowledgements: Acknowledgements,
        unsubscribing: UnsubscribeRules,
        ready: DeliveryQueue,
        commits: Commits,
        partitions: Partitions | None = None,
    ) -> None:
        self._context = context
        self._bus = context.bus
        self._clients = clients
        self._channels = channels
        self._acknowledgements = acknowledgements
        self._unsubscribing = unsubscribing
        self._ready = ready
        self._commits = commits
        self._partitions = partitions

    def receive(self, request: StreamingRequest) -> None:
        """Answers a subscription request, with the checks in the order of streaming-protocol.md section 12."""
        try:
            message = decode(pb.SubscriptionRequest, request.payload)
        except gogo.DecodeError as error:
            log.STREAMING.error("Invalid Subscription request from %s: %s", text(request.subject), error)
            self._refuse(request, request_errors.INVALID_SUBSCRIBE)
            return
        try:
            _check(message, text(request.subject))
        except RequestRefusedError as error:
            self._refuse(request, error.text)
            return
        partitions = self._partitions
        if partitions is None:
            self._subscribe(request, message)
        elif partitions.serves(message.subject):
            resume = partial(self._subscribe, request, message)
            refuse = partial(self._refuse, request, request_errors.INVALID_SUBSCRIBE)
            if self._clients.get(message.client_id) is not None:
                resume()
            elif not partitions.waiting.add(message.client_id, b"", len(request.payload), resume, refuse):
                refuse()

    def _subscribe(self, request: StreamingRequest, message: pb.SubscriptionRequest) -> None:
        client = self._clients.get(message.client_id)
        if client is None:
            log.STREAMING.error(
                "[Client:%s] Unknown client in subscription request from %s",
                text(message.client_id),
                text(request.subject),
            )
            self._refuse(request, request_errors.UNKNOWN_CLIENT)
            return
        # Earlier messages are stored before the position is determined.
        self._commits.commit()
        try:
            channel = self._commits.obtain(message.subject)
            if channel.state is MAKING:
                self._commits.when_durable([channel.making], partial(self._channel_created, request, message))
                return
            subscription, description = self._create_or_resume(channel, client, message, text(request.subject))
        except (RequestRefusedError, StorageError) as error:
            self._fail(request, message, text_of(error))
            return
        self.activate(subscription, client)
        log.STREAMING.debug("%s", description)
        self._channels.expiry.used(channel)
        ack_inbox = subscription.state.ack_inbox
        undo = partial(self._roll_back, request, message, subscription, ack_inbox)

        def flushed(error: str) -> None:
            if error:
                undo(error)
            else:
                # An early ack is not lost: NATS knows the ack inbox before the client does.
                self._bus.barrier(lambda: self._answer(request, subscription, ack_inbox))

        try:
            # A resumed durable does not need this for at-least-once delivery, but it could be offline after a crash
            # without it.
            flush = channel.store.flush()
        except StorageError as error:
            undo(str(error))
            return
        self._commits.when_durable([flush], flushed)

    def _roll_back(
        self,
        request: StreamingRequest,
        message: pb.SubscriptionRequest,
        subscription: ChannelSubscription,
        ack_inbox: bytes,
        error: str,
    ) -> None:
        """Ends a subscription that could not be stored; a resumed durable goes offline again."""
        new = subscription.phase is NEW
        if new:
            log.STREAMING.error(
                "Unable to store subscription [%s:%s] on [%s]: %s",
                text(message.client_id),
                text(message.inbox),
                text(message.subject),
                error,
            )
        if subscription.channel.by_ack_inbox.get(ack_inbox) is subscription:
            self._unsubscribing.end(subscription, unsubscribe=new)
        self._fail(request, message, error.encode(errors="surrogateescape"))

    def _channel_created(self, request: StreamingRequest, message: pb.SubscriptionRequest, error: str) -> None:
        if error:
            self._fail(request, message, error.encode(errors="surrogateescape"))
        else:
            self._subscribe(request, message)

    def _fail(self, request: StreamingRequest, message: pb.SubscriptionRequest, error: bytes) -> None:
        log.STREAMING.error("Unable to create subscription on %s: %s", quote(message.subject), text(error))
        self._refuse(request, error)

    def _answer(self, request: StreamingRequest, subscription: ChannelSubscription, ack_inbox: bytes) -> None:
        response = protocol.SubscriptionResponse(ack_inbox=ack_inbox)
        self._bus.publish(Role.SEND, request.reply, response.SerializeToString())
        if subscription.channel.by_ack_inbox.get(ack_inbox) is subscription:
            self.start(subscription)

    def activate(self, subscription: ChannelSubscription, client: StreamingSession) -> None:
        """Adds a subscription to its client and its channel. It gets messages after `start`."""
        channel = subscription.channel
        ack_inbox = subscription.state.ack_inbox
        subscription.client = client
        subscription.last_client_id = client.id
        client.subscriptions[subscription] = None
        channel.by_ack_inbox[ack_inbox] = subscription
        if subscription.group is None:
            channel.plain[subscription.id] = subscription
        try:
            handler = self._acknowledgements.handler(subscription)
            listener = self._bus.listen(Role.ACKS, ack_inbox, handler, gathered=True, taker=self._acknowledgements)
        except ValueError as error:
            # Only another program can have stored such an inbox.
            log.STREAMING.error("Unable to add subscription for %s: %s", text(ack_inbox), error)
            listener = None
        subscription.listener = listener

    def start(self, subscription: ChannelSubscription) -> None:
        """Starts the delivery to a subscription, or to its group."""
        subscription.advance(STARTED[subscription.phase])
        self._ready.add(subscription)

    def _create_or_resume(
        self, channel: Channel, client: StreamingSession, message: pb.SubscriptionRequest, subject: str
    ) -> tuple[ChannelSubscription, str]:
        if message.q_group:
            return self._join(channel, client, message, subject)
        if not message.durable_name:
            return self._create(channel, client, message, None)
        key = durable_key(client.id, channel.name, message.durable_name)
        known = channel.durables.get(key)
        if known is not None and known.active and self._context.options.replace_durable:
            self._unsubscribing.end(known, unsubscribe=False)
        if known is None:
            created, description = self._create(channel, client, message, None)
            channel.durables[key] = created
            return created, description
        if known.active:
            log.STREAMING.error("[Client:%s] Duplicate durable subscription registration", text(client.id))
            raise RequestRefusedError(request_errors.DUPLICATE_DURABLE)
        return known, self._resume(known, client, message)

    def _join(
        self, channel: Channel, client: StreamingSession, message: pb.SubscriptionRequest, subject: str
    ) -> tuple[ChannelSubscription, str]:
        name = message.q_group
        if message.durable_name:
            if b":" in message.durable_name:
                log.STREAMING.error(
                    "[Client:%s] Invalid DurableName (%s) for queue subscriber from %s",
                    text(client.id),
                    quote(message.durable_name),
                    subject,
                )
                raise RequestRefusedError(request_errors.INVALID_DURABLE_NAME)
            name = message.durable_name + b":" + name
        group = channel.groups.get(name) or QueueGroup(channel, name)
        shadow = group.shadow
        if shadow is not None:
            description = self._resume(shadow, client, message)
            group.shadow = None
            subscription = shadow
        else:
            subscription, description = self._create(channel, client, message, group)
        group.members.append(subscription)
        channel.groups[name] = group
        return subscription, description

    def _create(
        self, channel: Channel, client: StreamingSession, message: pb.SubscriptionRequest, group: QueueGroup | None
    ) -> tuple[ChannelSubscription, str]:
        joins = group is not None and bool(group.members)
        before_first, where = 0, ""
        if not joins:
            before_first, where = _start_position(message, channel, self._context.clock.wall())
        state = pb.SubState(
            client_id=client.id,
            q_group=group.name if group else b"",
            inbox=message.inbox,
            ack_inbox=self._context.nuids.inbox(),
            max_in_flight=message.max_in_flight,
            ack_wait_in_secs=message.ack_wait_in_secs,
            durable_name=b"" if group else message.durable_name,
            last_sent=before_first,
            is_durable=bool(message.durable_name),
        )
        try:
            channel.store.create(state)
        except StorageError as error:
            log.STREAMING.error(
                "Unable to store subscription [%s:%s] on [%s]: %s",
                text(client.id),
                text(message.inbox),
                text(channel.name),
                error,
            )
            raise
        if group is not None and not joins:
            group.last_sent = before_first
        subscription = ChannelSubscription(channel, state, group)
        return subscription, log_text("Added member to" if joins else "Started new", subscription, where)

    def _resume(
        self, subscription: ChannelSubscription, client: StreamingSession, message: pb.SubscriptionRequest
    ) -> str:
        """Gives a client an offline durable, or a durable group's shadow (streaming-protocol.md sections 17, 19.6)."""
        state = subscription.state
        before = pb.SubState.FromString(state.SerializeToString())
        state.client_id = client.id
        state.inbox = message.inbox
        state.ack_inbox = self._context.nuids.inbox()
        state.max_in_flight = message.max_in_flight
        state.ack_wait_in_secs = message.ack_wait_in_secs
        state.is_closed = False
        try:
            subscription.channel.store.update(state)
        except StorageError:
            state.CopyFrom(before)
            raise
        subscription.last_client_id = client.id
        subscription.adopt()
        subscription.settle()
        subscription.advance(RESUMED)
        return log_text("Resumed", subscription)

    def _refuse(self, request: StreamingRequest, error: bytes) -> None:
        self._bus.publish(Role.SEND, request.reply, protocol.SubscriptionResponse(error=error).SerializeToString())


def _check(message: pb.SubscriptionRequest, subject: str) -> None:
    """Checks the fields of a request. Raises RefusedError."""
    name = text(message.client_id)
    if not message.client_id:
        log.STREAMING.error("Missing ClientID in subscription request from %s", subject)
        raise RequestRefusedError(request_errors.CLIENT_ID_MISSING)
    for bad, what, error in (
        (message.ack_wait_in_secs <= 0, f"AckWait ({message.ack_wait_in_secs})", request_errors.INVALID_ACK_WAIT),
        (message.max_in_flight <= 0, f"MaxInflight ({message.max_in_flight})", request_errors.INVALID_MAX_IN_FLIGHT),
        (
            not 0 <= message.start_position <= 4,
            f"StartPosition ({message.start_position})",
            request_errors.INVALID_START,
        ),
        (not valid_channel(message.subject), f"channel {quote(message.subject)}", request_errors.INVALID_SUBJECT),
    ):
        if bad:
            log.STREAMING.error("[Client:%s] Invalid %s in subscription request from %s", name, what, subject)
            raise RequestRefusedError(error)


def _start_position(request: pb.SubscriptionRequest, channel: Channel, now: int) -> tuple[int, str]:
    """Returns the sequence before the first one of a new subscription, and its description for the log."""
    first, last = channel.messages.first, channel.visible
    position = request.start_position
    if position == pb.LAST_RECEIVED:
        before_first = max(last - 1, 0)
        return before_first, f"last message, seq={before_first + 1}"
    if position == pb.TIME_DELTA_START:
        found = channel.messages.sequence_at(now - request.start_time_delta)
        before_first = min(max(found - 1, 0), last)
        return before_first, f"from time time='{_time(now - request.start_time_delta)}' seq={before_first + 1}"
    if position == pb.SEQUENCE_START:
        asked = request.start_sequence
        before_first = last if asked > last else max(max(asked, first) - 1, 0)
        return before_first, f"from sequence, asked_seq={asked} actual_seq={before_first + 1}"
    if position == pb.FIRST:
        before_first = max(first - 1, 0)
        return before_first, f"from beginning, seq={before_first + 1}"
    return last, f"new-only, seq={last + 1}"


def _time(timestamp: int) -> str:
    seconds, rest = divmod(timestamp, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp}ns"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest:09d} +0000 UTC"
