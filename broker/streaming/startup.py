"""The start: the server's record, the state in the store, and the search for another server.

Facts: streaming-protocol.md sections 4, 5 and 23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker import log
from broker.streaming.names import durable_key, new_server, sub_close_subject, text
from broker.streaming.ports import RequestAnswer, RequestOutcome, Role
from broker.streaming.requests import decode
from broker.streaming.state import OFFLINE, RECOVERED, ChannelSubscription, QueueGroup
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.stores.interface import Recovered, RecoveredSubscription, StateStore
    from broker.streaming.context import Context
    from broker.streaming.registry import Channels, Clients
    from broker.streaming.state import Channel
    from broker.streaming.streaming_options import StreamingOptions
    from broker.streaming.subscribe import SubscribeRules

#: time (ns) for the answer of another server
_TIMEOUT: Final = 250_000_000


class ServerStartError(Exception):
    """The server cannot start; the text says why."""


def recover_server(store: StateStore, recovered: Recovered | None, options: StreamingOptions) -> pb.ServerInfo:
    """Returns the server's record as stored, or stores a new one (streaming-protocol.md section 4).

    Raises StartError if the store belongs to another cluster id.
    """
    if recovered is None or not recovered.server.ByteSize():
        if recovered is not None and recovered.channels:
            log.STREAMING.warning(
                "Server information was not recovered, however channels are present. "
                "Will initialize server and restart recovery!"
            )
        server = new_server(options.cluster_id, options.discover_prefix)
        store.init(server)
        return server
    server = recovered.server
    if server.cluster_id != options.cluster_id:
        raise ServerStartError(
            f'cluster ID "{text(options.cluster_id)}" does not match recovered value of "{text(server.cluster_id)}"'
        )
    if not server.sub_close:
        server.sub_close = sub_close_subject(server.cluster_id)
        store.init(server)
    return server


def detect(context: Context, discovery: bytes, alone: Callable[[], None], failed: Callable[[str], None]) -> None:
    """Asks on the discovery subject for another server (streaming-protocol.md section 5.1).

    Calls `alone` if there is none, else `failed` with the reason why this server must not start.
    """
    cluster_id = context.options.cluster_id
    found = f'discovered another streaming server with cluster ID "{text(cluster_id)}"'

    def answered(answer: RequestAnswer) -> None:
        if answer.outcome is not RequestOutcome.REPLY:
            log.STREAMING.debug("Did not detect another server instance")
            alone()
            return
        try:
            response = decode(protocol.ConnectResponse, answer.payload)
        except gogo.DecodeError as error:
            failed(f"unmarshall error while detecting another server instance: {error}")
            return
        if not response.close_requests:
            failed(found)
            return
        close = pb.CloseRequest(client_id=cluster_id).SerializeToString()
        # A client may have answered: only close subjects are allowed among the reserved ones.
        to, is_close = response.close_requests, response.close_requests.startswith(b"_STAN.close.")
        context.bus.request(Role.GENERAL, to, close, _TIMEOUT, lambda _answer: failed(found), to_servers=is_close)

    probe = pb.ConnectRequest(client_id=cluster_id, heartbeat_inbox=context.nuids.inbox())
    context.bus.request(Role.GENERAL, discovery, probe.SerializeToString(), _TIMEOUT, answered, to_servers=True)


class StateRecovery:
    def __init__(self, clients: Clients, channels: Channels, subscribing: SubscribeRules) -> None:
        self._clients = clients
        self._channels = channels
        self._subscribing = subscribing
        #: active subscriptions, to be started when the server is ready
        self.active: list[ChannelSubscription] = []

    def restore(self, recovered: Recovered) -> None:
        """Restores the whole state without sending messages."""
        for info in recovered.clients:
            self._clients.recover(info)
        for name, (stores, subscriptions) in recovered.channels.items():
            channel = self._channels.recover(name, stores)
            for found in sorted(subscriptions, key=lambda each: each.state.id):
                self._restore(channel, found)

    def _restore(self, channel: Channel, found: RecoveredSubscription) -> None:
        state = found.state
        client = self._clients.get(state.client_id) if state.client_id else None
        if state.q_group:
            group = self._restored_group(channel, found)
            if group is None:
                return
        else:
            group = None
            if client is None and not state.durable_name:
                return
        offline = client is None or (bool(state.durable_name) and state.is_closed)
        subscription = ChannelSubscription(channel, state, group, OFFLINE if offline else RECOVERED)
        # Deadlines follow from the messages' timestamps when the server is ready; 0 sorts by sequence.
        subscription.pending.update(dict.fromkeys(found.pending, 0))
        subscription.last_sent = max(state.last_sent, *found.pending, 0)
        subscription.settle()
        if group is not None:
            group.last_sent = max(group.last_sent, subscription.last_sent)
            if client is None:
                group.shadow = subscription
                return
            group.members.append(subscription)
        elif state.durable_name:
            channel.durables[durable_key(state.client_id, channel.name, state.durable_name)] = subscription
            if offline:
                return
        assert client is not None
        self._subscribing.activate(subscription, client)
        self.active.append(subscription)

    def _restored_group(self, channel: Channel, found: RecoveredSubscription) -> QueueGroup | None:
        """Returns the group of a recovered member or shadow; None if the subscription is ignored."""
        state = found.state
        known = self._clients.get(state.client_id) is not None
        if state.client_id and not known:
            if state.is_durable:
                log.STREAMING.warning(
                    "Not recovering ghost durable queue subscriber: [%s]:[%s] subject=%s inbox=%s",
                    text(state.client_id),
                    text(state.q_group),
                    text(channel.name),
                    text(state.inbox),
                )
                channel.store.delete(state.id)
            return None
        if not state.client_id and not state.is_durable:
            return None
        group = channel.groups.get(state.q_group)
        if group is None:
            group = channel.groups[state.q_group] = QueueGroup(channel, state.q_group)
        if not state.client_id and group.shadow is not None:
            log.STREAMING.warning(
                'Duplicate shadow durable queue consumer (subid=%d) for group "%s"', state.id, text(state.q_group)
            )
            if max(state.last_sent, *found.pending, 0) <= group.shadow.last_sent:
                return None
        return group
