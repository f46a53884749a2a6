"""Ends of subscriptions and clients: unsubscribe, close, time-out (streaming-protocol.md sections 9 and 17-20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import StorageError
from broker.streaming import request_errors
from broker.streaming.inflight import store_sent
from broker.streaming.names import durable_key, text
from broker.streaming.pending import PendingByDeadline, in_order
from broker.streaming.ports import Role
from broker.streaming.request_errors import RequestRefusedError
from broker.streaming.requests import StreamingRequest, decode
from broker.streaming.state import ENDED, OFFLINE, log_text
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.stores.interface import Flush
    from broker.streaming.commits import Commits
    from broker.streaming.context import Context, Timer
    from broker.streaming.partitions import Partitions
    from broker.streaming.redelivery import Redelivery
    from broker.streaming.registry import Channels, Clients
    from broker.streaming.state import Channel, ChannelSubscription, QueueGroup, StreamingSession

#: pending messages of ended subscriptions that are freed at a time
_FREE_COUNT: Final = 4096


class UnsubscribeRules:
    def __init__(
        self,
        context: Context,
        clients: Clients,
        channels: Channels,
        redelivery: Redelivery,
        commits: Commits,
        partitions: Partitions | None = None,
    ) -> None:
        self._bus = context.bus
        self._clock = context.clock
        self._timers = context.timers
        self._clients = clients
        self._channels = channels
        self._redelivery = redelivery
        self._commits = commits
        self._partitions = partitions
        self._dropped: list[tuple[PendingByDeadline, dict[int, int]]] = []
        self._free_timer: Timer | None = None

    def receive_unsubscribe(self, request: StreamingRequest) -> None:
        self._receive(request, unsubscribe=True)

    def receive_close(self, request: StreamingRequest) -> None:
        self._receive(request, unsubscribe=False)

    def _receive(self, request: StreamingRequest, *, unsubscribe: bool) -> None:
        try:
            message = decode(pb.UnsubscribeRequest, request.payload)
        except gogo.DecodeError:
            log.STREAMING.error("Invalid unsub request from %s", text(request.subject))
            self._answer(request, request_errors.INVALID_UNSUBSCRIBE)
            return
        if self._partitions is None or self._partitions.serves(message.subject):
            self._bus.barrier(lambda: self._end_requested(request, message, unsubscribe))

    def _end_requested(self, request: StreamingRequest, message: pb.UnsubscribeRequest, unsubscribe: bool) -> None:
        try:
            channel = self._end_subscription(message, unsubscribe)
        except RequestRefusedError as error:
            self._answer(request, error.text)
            return
        flush = self._commits.flush_subscriptions(channel)
        self._commits.when_durable([flush], lambda _error: self._answer(request, b""))

    def _end_subscription(self, message: pb.UnsubscribeRequest, unsubscribe: bool) -> Channel:
        """Ends the requested subscription. Returns its channel."""
        self._commits.commit()
        channel = self._channels.get(message.subject)
        what = "unsubscribe" if unsubscribe else "subscription close"
        if channel is None:
            log.STREAMING.error("[Client:%s] %s request for unknown channel", text(message.client_id), what)
            raise RequestRefusedError(request_errors.UNKNOWN_CHANNEL)
        subscription = channel.find(message.inbox)
        if subscription is None:
            log.STREAMING.error("[Client:%s] %s request for unknown inbox", text(message.client_id), what)
            raise RequestRefusedError(request_errors.INVALID_SUBSCRIPTION)
        client = self._clients.get(message.client_id)
        if client is None or subscription not in client.subscriptions:
            log.STREAMING.error("[Client:%s] %s request of another client", text(message.client_id), what)
            raise RequestRefusedError(request_errors.UNKNOWN_CLIENT)
        self.end(subscription, unsubscribe=unsubscribe)
        return channel

    def _answer(self, request: StreamingRequest, error: bytes) -> None:
        self._bus.publish(Role.SEND, request.reply, protocol.SubscriptionResponse(error=error).SerializeToString())

    def receive_client_close(self, request: StreamingRequest) -> None:
        try:
            message = decode(pb.CloseRequest, request.payload)
        except gogo.DecodeError:
            log.STREAMING.error("Received invalid close request, subject=%s", text(request.subject))
            self._answer_close(request, request_errors.INVALID_CLOSE)
            return
        self._bus.barrier(lambda: self._close_requested(request, message.client_id))

    def _close_requested(self, request: StreamingRequest, client_id: bytes) -> None:
        client = self._clients.get(client_id)
        if client is None:
            log.STREAMING.error('Unknown client "%s" in close request', text(client_id))
            self._answer_close(request, request_errors.UNKNOWN_CLIENT)
            return
        self._commits.when_durable(self.close_client(client), lambda _error: self._answer_close(request, b""))

    def _answer_close(self, request: StreamingRequest, error: bytes) -> None:
        self._bus.publish(Role.GENERAL, request.reply, protocol.CloseResponse(error=error).SerializeToString())

    def close_client(self, client: StreamingSession) -> list[Flush | None]:
        """Unregisters a client and closes its subscriptions. Returns the flushes that make this durable."""
        self._commits.commit()
        try:
            self._clients.unregister(client)
        except StorageError as error:
            log.STREAMING.error("[Client:%s] Error unregistering client: %s", text(client.id), error)
        self._timers.cancel(client.heartbeat)
        client.heartbeat = None
        changed: dict[Channel, None] = {}
        for subscription in tuple(client.subscriptions):
            self.end(subscription, unsubscribe=False)
            if subscription.state.is_durable:
                changed[subscription.channel] = None
        flushes = [self._commits.flush_subscriptions(channel) for channel in changed]
        log.STREAMING.debug("[Client:%s] Closed (Inbox=%s)", text(client.id), text(client.info.hb_inbox))
        return flushes

    def end(self, subscription: ChannelSubscription, *, unsubscribe: bool) -> None:
        """Ends an active subscription. A durable can be resumed unless it is unsubscribed."""
        channel = subscription.channel
        client = subscription.client
        assert client is not None
        if subscription.listener is not None:
            self._bus.unlisten(subscription.listener)
            subscription.listener = None
        self._redelivery.stop(subscription)
        del client.subscriptions[subscription]
        del channel.by_ack_inbox[subscription.state.ack_inbox]
        subscription.client = subscription.held = None
        if subscription.group is not None:
            what = self._leave(subscription, subscription.group, unsubscribe=unsubscribe)
        else:
            what = self._end_plain(subscription, client, unsubscribe=unsubscribe)
        log.STREAMING.debug("%s", log_text(what, subscription))
        self._channels.expiry.idle(channel)

    def _end_plain(self, subscription: ChannelSubscription, client: StreamingSession, *, unsubscribe: bool) -> str:
        channel = subscription.channel
        state = subscription.state
        del channel.plain[subscription.id]
        if state.durable_name:
            if not unsubscribe:
                state.last_sent = subscription.last_sent
                state.is_closed = True
                subscription.advance(OFFLINE)
                self._update(subscription)
                return "Suspended"
            del channel.durables[durable_key(client.id, channel.name, state.durable_name)]
        subscription.advance(ENDED)
        self.delete(channel, state)
        self._discard(subscription)
        return "Removed"

    def _leave(self, subscription: ChannelSubscription, group: QueueGroup, *, unsubscribe: bool) -> str:
        channel = subscription.channel
        state = subscription.state
        group.members.remove(subscription)
        if group.members:
            subscription.advance(ENDED)
            # The order of the records is the original's (streaming-protocol.md section 22).
            if state.is_durable:
                self._hand_over(subscription, group)
                self.delete(channel, state)
            else:
                self.delete(channel, state)
                self._hand_over(subscription, group)
            if max(member.last_sent for member in group.members) < group.last_sent:
                heir = group.members[0]
                heir.last_sent = heir.state.last_sent = group.last_sent
                self._update(heir)
            return "Removed member from"
        if state.is_durable and not unsubscribe:
            subscription.last_sent = state.last_sent = group.last_sent
            state.client_id = b""
            group.shadow = subscription
            subscription.advance(OFFLINE)
            self._update(subscription)
            return "Suspended"
        del channel.groups[group.name]
        subscription.advance(ENDED)
        self.delete(channel, state)
        self._discard(subscription)
        return "Removed"

    def _hand_over(self, subscription: ChannelSubscription, group: QueueGroup) -> None:
        """Distributes a member's pending messages to the others for redelivery (streaming-protocol.md section 18.8)."""
        heirs = _successors(subscription, group)
        if not heirs:
            self._discard(subscription)
            return
        now = self._clock.monotonic()
        order = in_order(subscription.pending)
        subscription.pending = PendingByDeadline()
        for position, member in enumerate(heirs):
            share = order[position :: len(heirs)]
            if share:
                store_sent(member, share)
                member.pending.move([(sequence, now) for sequence in share])
                member.last_sent = max(member.last_sent, *share)
                member.settle()
                self._redelivery.arm_soon(member)

    def _discard(self, subscription: ChannelSubscription) -> None:
        """Drops the pending messages of an ended subscription. Many of them are freed in steps, as that takes long."""
        if len(subscription.pending) > _FREE_COUNT:
            self._dropped.append((subscription.pending, subscription.counts))
            if self._free_timer is None:
                self._free_timer = self._timers.at(self._clock.monotonic(), self._free_dropped)
        subscription.pending, subscription.counts = PendingByDeadline(), {}

    def _free_dropped(self) -> None:
        pending, counts = self._dropped[-1]
        pending.shorten(_FREE_COUNT)
        for _ in range(min(_FREE_COUNT, len(counts))):
            counts.popitem()
        if not pending and not counts:
            self._dropped.pop()
        self._free_timer = self._timers.at(self._clock.monotonic(), self._free_dropped) if self._dropped else None

    def delete(self, channel: Channel, state: pb.SubState) -> None:
        try:
            channel.store.delete(state.id)
        except StorageError as error:
            log.STREAMING.error(
                "[Client:%s] Error deleting subscription subid=%d, subject=%s, err=%s",
                text(state.client_id),
                state.id,
                text(channel.name),
                error,
            )

    def _update(self, subscription: ChannelSubscription) -> None:
        try:
            subscription.channel.store.update(subscription.state)
        except StorageError as error:
            log.STREAMING.error("Unable to update subscription subid=%d: %s", subscription.id, error)


def _successors(leaver: ChannelSubscription, group: QueueGroup) -> list[ChannelSubscription]:
    """Returns the members that get the pending messages of a departed member.

    If its client has ended, other members of that client are about to end: members of other clients get the
    messages. If there are none, the group ends, and in a durable group the member that leaves last gets them.
    """
    staying = [member for member in group.members if member.client is not None and member.client.registered]
    if staying or not leaver.state.is_durable:
        return staying
    client = group.members[0].client
    return [] if client is None else [next(each for each in reversed(client.subscriptions) if each.group is group)]
