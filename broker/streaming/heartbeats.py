"""Heartbeats, which tell whether clients are still there (streaming-protocol.md section 8)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.streaming import errors
from broker.streaming.names import text
from broker.streaming.ports import Answer, Outcome, Role
from broker.streaming.requests import decode
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol

if TYPE_CHECKING:
    from broker.streaming.clients import Client, Clients
    from broker.streaming.context import Context
    from broker.streaming.requests import Request

#: A client that says that it is there, though it did not answer, is asked again so soon.
_SOON: Final = 1_000_000


class Heartbeats:
    """Asks each client in turn, and ends those that do not answer.

    Args:
        context: The world.
        clients: All clients.
        close: Ends a client.
    """

    def __init__(self, context: Context, clients: Clients, close: Callable[[Client], None]) -> None:
        self._bus = context.bus
        self._timers = context.timers
        self._options = context.options
        self._clients = clients
        self._close = close

    def start(self, client: Client) -> None:
        """Lets the first heartbeat to a client go out after the interval."""
        self._arm(client, self._options.heartbeat_interval)

    def stop(self, client: Client) -> None:
        """Lets no heartbeat go out any more."""
        self._timers.cancel(client.heartbeat)
        client.heartbeat = None

    def receive_ping(self, request: Request) -> None:
        """Takes a ping of a client, from the pings subject (streaming-protocol.md section 8.2)."""
        if not request.payload:
            return
        try:
            ping = decode(protocol.Ping, request.payload)
        except gogo.DecodeError:
            return
        client = self._clients.by_connection(ping.conn_id)
        response = protocol.PingResponse()
        if client is None:
            response.error = errors.CLIENT_REPLACED
        elif client.failed_heartbeat and client.heartbeat is not None:
            self._timers.cancel(client.heartbeat)
            self._arm(client, _SOON)
        self._bus.publish(Role.HEARTBEATS, request.reply, response.SerializeToString())

    def _arm(self, client: Client, delay: int) -> None:
        client.heartbeat = self._timers.after(delay, partial(self._ask, client))

    def _ask(self, client: Client) -> None:
        client.heartbeat = None
        self._bus.request(
            Role.HEARTBEATS,
            client.info.hb_inbox,
            b"",
            self._options.heartbeat_timeout,
            partial(self._answered, client),
        )

    def _answered(self, client: Client, answer: Answer) -> None:
        if not client.registered:
            return
        if answer.outcome is Outcome.REPLY:
            client.failures = 0
        else:
            client.failures += 1
            if client.failures > self._options.heartbeat_fail_count:
                log.STREAMING.error("[Client:%s] Timed out on heartbeats", text(client.id))
                self._close(client)
                return
        self._arm(client, self._options.heartbeat_interval)
