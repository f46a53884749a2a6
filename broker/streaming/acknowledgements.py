"""Acknowledgements: messages that are not pending any more (streaming-protocol.md section 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import log
from broker.streaming.control import is_control
from broker.streaming.delivery import store_acked
from broker.streaming.hot.kernels import read_acks
from broker.streaming.names import text
from broker.streaming.requests import decode, requests
from stantools.format import gogo
from stantools.format.proto import protocol_pb2 as protocol

if TYPE_CHECKING:
    from broker.streaming.channels import Channels
    from broker.streaming.ports import Clock
    from broker.streaming.serving import Ready
    from broker.streaming.subscriptions import Subscription
    from broker.wire.frames import Frames, Handler
    from stantools.format.envelope import Buffer


class Acknowledgements:
    """Takes acknowledgements, and lets those who have room again be served."""

    def __init__(self, channels: Channels, ready: Ready, clock: Clock) -> None:
        self._channels = channels
        self._ready = ready
        self._clock = clock

    def handler(self, subscription: Subscription) -> Handler:
        """Returns the handler of a subscription's ack inbox."""
        name = subscription.channel.name

        def handle(buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
            while begin < end:
                sequences, begin = read_acks(buffer, frames, begin, end, name)
                if sequences:
                    self.acknowledge(subscription, sequences)
                if begin < end:
                    request = next(requests(buffer, frames, begin, end))
                    self._odd(subscription, request.payload)
                    begin += 1

        return handle

    def acknowledge(self, subscription: Subscription, sequences: list[int]) -> None:
        """Takes acknowledgements that came to a subscription's ack inbox.

        What is not pending there may be so at another member of the group (rule 4); else it has no effect.
        """
        if log.STREAMING.isEnabledFor(log.TRACE):
            for sequence in sequences:
                log.STREAMING.log(
                    log.TRACE,
                    "[Client:%s] Processing ack for subid=%d, subject=%s, seq=%d",
                    subscription.client_name,
                    subscription.id,
                    text(subscription.channel.name),
                    sequence,
                )
        done = subscription.forget(sequences)
        if done:
            store_acked(subscription, done)
            if subscription.group is not None:
                subscription.group.acknowledged(subscription, len(done), self._clock.monotonic())
        if subscription.group is not None and len(done) < len(sequences):
            for member in subscription.group.members:
                if member is not subscription and (moved := member.forget(sequences)):
                    store_acked(member, moved)
                    self.settle(member)
        self.settle(subscription)

    def drop(self, subscription: Subscription, sequences: list[int]) -> None:
        """Acknowledges messages that are not in the store any more (streaming-protocol.md section 16.8)."""
        if done := subscription.forget(sequences):
            store_acked(subscription, done)
        self.settle(subscription)

    def settle(self, subscription: Subscription) -> None:
        """Ends stalling if there is room again, and lets the subscription be served."""
        if subscription.stalled and subscription.settle():
            self._ready.add(subscription)

    def _odd(self, subscription: Subscription, payload: bytes) -> None:
        """Takes an acknowledgement that the kernel left alone."""
        try:
            ack = decode(protocol.Ack, payload)
        except gogo.DecodeError as error:
            if not is_control(payload):
                log.STREAMING.error("Unable to unmarshal Ack: %s", error)
            return
        if ack.subject == subscription.channel.name:
            self.acknowledge(subscription, [ack.sequence])
        elif self._channels.get(ack.subject) is None:
            log.STREAMING.error("Unable to process ack seq=%d, channel %s not found", ack.sequence, text(ack.subject))
