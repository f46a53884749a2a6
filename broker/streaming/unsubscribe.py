"""Ends of subscriptions and clients: unsubscribe, close, time-out (streaming-protocol.md sections 9 and 17-20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import StorageError
from broker.streaming import request_errors
from broker.streaming.inflight import store_sent
from broker.streaming.names import durable_key, text
from broker.streaming.pending import PendingByDeadline
from broker.streaming.ports import Role
from broker.streaming.request_errors import RequestRefusedError
from broker.streaming.requests import StreamingRequest, decode
from broker.streaming.state import told
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

#: Entries of what ended subscriptions had pending that are freed at a time.
_ENTRIES: Final = 4096


class UnsubscribeRules:
    """Ends subscriptions, and clients with all of theirs.

    Args:
        context: The world.
        redelivery: Ends with a subscription, and goes on at others.
        commits: What came before is committed before something ends.
        partitions: Requests for channels of other servers are not answered.
    """

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
        self._remains: list[tuple[PendingByDeadline, dict[int, int]]] = []
        self._giving_back: Timer | None = None

    def receive_unsubscribe(self, request: StreamingRequest) -> None:
        """Takes a request from the unsubscribe subject."""
        self._receive(request, unsubscribe=True)

    def receive_close(self, request: StreamingRequest) -> None:
        """Takes a request from the subscription close subject."""
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
        """Ends a subscription as somebody asked for, and answers when that is durable."""
        try:
            channel = self._end_found(message, unsubscribe)
        except RequestRefusedError as error:
            self._answer(request, error.text)
            return
        flush = self._commits.flush_subscriptions(channel)
        self._commits.when_durable([flush], lambda _error: self._answer(request, b""))

    def _end_found(self, message: pb.UnsubscribeRequest, unsubscribe: bool) -> Channel:
        """Ends a subscription as somebody asked for. Returns its channel.

        Raises:
            RefusedError: There is none, or it is another client's.
        """
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
        """Takes a request from the close subject (streaming-protocol.md section 9)."""
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
        """Ends a client: it is forgotten, its subscriptions are closed. Returns what makes that durable."""
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
        """Ends an active subscription.

        Args:
            subscription: Is not used any more, or offline then.
            unsubscribe: A durable ends for good; else it can be resumed.
        """
        channel = subscription.channel
        client = subscription.client
        assert client is not None
        if subscription.listener is not None:
            self._bus.unlisten(subscription.listener)
            subscription.listener = None
        self._redelivery.stop(subscription)
        del client.subscriptions[subscription]
        del channel.by_ack_inbox[subscription.state.ack_inbox]
        subscription.client = None
        subscription.started = False
        if subscription.group is not None:
            what = self._leave(subscription, subscription.group, unsubscribe=unsubscribe)
        else:
            what = self._end_plain(subscription, client, unsubscribe=unsubscribe)
        log.STREAMING.debug("%s", told(what, subscription))
        self._channels.expiry.idle(channel)

    def _end_plain(self, subscription: ChannelSubscription, client: StreamingSession, *, unsubscribe: bool) -> str:
        channel = subscription.channel
        state = subscription.state
        del channel.plain[subscription.id]
        if state.durable_name:
            if not unsubscribe:
                state.last_sent = subscription.last_sent
                state.is_closed = True
                self._update(subscription)
                return "Suspended"
            del channel.durables[durable_key(client.id, channel.name, state.durable_name)]
        self.delete(channel, state)
        self._discard(subscription)
        return "Removed"

    def _leave(self, subscription: ChannelSubscription, group: QueueGroup, *, unsubscribe: bool) -> str:
        channel = subscription.channel
        state = subscription.state
        group.members.remove(subscription)
        if group.members:
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
            self._update(subscription)
            return "Suspended"
        del channel.groups[group.name]
        self.delete(channel, state)
        self._discard(subscription)
        return "Removed"

    def _hand_over(self, subscription: ChannelSubscription, group: QueueGroup) -> None:
        """Hands what a member has pending to the others in turn; they send it again soon.

        Facts: streaming-protocol.md section 18.8.
        """
        heirs = _heirs(subscription, group)
        if not heirs:
            self._discard(subscription)
            return
        now = self._clock.monotonic()
        order = subscription.pending.in_order()
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
        """Forgets what an ended subscription has pending. To free much at once would take long."""
        if len(subscription.pending) > _ENTRIES:
            self._remains.append((subscription.pending, subscription.counts))
            if self._giving_back is None:
                self._giving_back = self._timers.at(self._clock.monotonic(), self._give_back)
        subscription.pending, subscription.counts = PendingByDeadline(), {}

    def _give_back(self) -> None:
        """Frees what ended subscriptions had pending, a little at a time."""
        pending, counts = self._remains[-1]
        pending.shorten(_ENTRIES)
        for _ in range(min(_ENTRIES, len(counts))):
            counts.popitem()
        if not pending and not counts:
            self._remains.pop()
        self._giving_back = self._timers.at(self._clock.monotonic(), self._give_back) if self._remains else None

    def delete(self, channel: Channel, state: pb.SubState) -> None:
        """Removes a subscription from the store."""
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


def _heirs(leaver: ChannelSubscription, group: QueueGroup) -> list[ChannelSubscription]:
    """Returns the members that get what one has pending that has left.

    If its client has ended, members of the same client end with it, and would hand over in turn: the others get it. If
    there are none, the group ends: with a durable one, the member gets it that leaves last.
    """
    staying = [member for member in group.members if member.client is not None and member.client.registered]
    if staying or not leaver.state.is_durable:
        return staying
    client = group.members[0].client
    return [] if client is None else [next(each for each in reversed(client.subscriptions) if each.group is group)]
