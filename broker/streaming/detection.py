"""Looks for another server with the same cluster id (streaming-protocol.md section 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker import log
from broker.streaming.names import text
from broker.streaming.ports import Answer, Outcome, Role
from broker.streaming.requests import decode
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol
from stantools.format.proto import store_pb2 as pb

if TYPE_CHECKING:
    from broker.streaming.context import Context

#: How long another server may take to answer.
_TIMEOUT: Final = 250_000_000


def detect(context: Context, discovery: bytes, alone: Callable[[], None], failed: Callable[[str], None]) -> None:
    """Sends a connect request to the discovery subject, to see whether anybody answers.

    Args:
        context: The world.
        discovery: The subject.
        alone: Called if there is nobody.
        failed: Called with the reason why this server must not start.
    """
    cluster_id = context.options.cluster_id
    found = f'discovered another streaming server with cluster ID "{text(cluster_id)}"'

    def answered(answer: Answer) -> None:
        if answer.outcome is not Outcome.REPLY:
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
        context.bus.request(Role.GENERAL, response.close_requests, close, _TIMEOUT, lambda _answer: failed(found))

    probe = pb.ConnectRequest(client_id=cluster_id, heartbeat_inbox=context.nuids.inbox())
    context.bus.request(Role.GENERAL, discovery, probe.SerializeToString(), _TIMEOUT, answered)
