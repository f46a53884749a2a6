"""Who is served next: subscriptions and queue groups that may get messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.streaming.subscriptions import Hold, Subscription

if TYPE_CHECKING:
    from broker.streaming.channels import Channel
    from broker.streaming.delivery import Delivery
    from broker.streaming.ports import Bus, Driver
    from broker.streaming.queues import QueueGroup
    from broker.streaming.redelivery import Redelivery
    from broker.streaming.timers import Timer, Timers

#: How long those wait whose clients do not keep up (ns).
PAUSE: Final = 5_000_000


class Ready:
    """Those that something has happened to since they were served last, each once, in that order."""

    def __init__(self, driver: Driver, timers: Timers) -> None:
        self._driver = driver
        self._timers = timers
        self._units: dict[Subscription | QueueGroup, None] = {}
        self._paused: dict[Subscription | QueueGroup, None] = {}
        self._pause: Timer | None = None

    def __len__(self) -> int:
        return len(self._units)

    def add(self, subscription: Subscription) -> None:
        """Lets a subscription be served soon, or the group that it is a member of."""
        self._units[subscription.group or subscription] = None
        self._driver.commit_soon()

    def again(self, unit: Subscription | QueueGroup) -> None:
        """Lets go on with one for which there is more to do."""
        self._units[unit] = None
        self._driver.commit_soon()

    def later(self, unit: Subscription | QueueGroup) -> None:
        """Lets go on with one after a pause."""
        self._paused[unit] = None
        if self._pause is None:
            self._pause = self._timers.after(PAUSE, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._units.update(self._paused)
        self._paused.clear()
        self._driver.commit_soon()

    def take(self) -> list[Subscription | QueueGroup]:
        """Returns all and forgets them."""
        units = list(self._units)
        self._units.clear()
        return units


class Serving:
    """Serves: first what is to be sent again before anything else (holds), then new messages.

    Whoever does not keep up with what was sent before is not served for a while: else a client with many messages in
    flight, or large ones, would be cut off as a slow consumer, however fast it reads.
    """

    def __init__(self, bus: Bus, ready: Ready, delivery: Delivery, redelivery: Redelivery) -> None:
        self._bus = bus
        self._ready = ready
        self._delivery = delivery
        self._redelivery = redelivery

    def run(self) -> None:
        """Serves everybody who is ready, once, and a bounded amount each."""
        for unit in self._ready.take():
            self._serve(unit)

    def channel(self, channel: Channel) -> None:
        """Serves all subscriptions of a channel in the order of streaming-protocol.md section 14.9."""
        for subscription in tuple(channel.plain.values()):
            self._serve(subscription)
        for group in tuple(channel.groups.values()):
            if group.members:
                self._serve(group)

    def _serve(self, unit: Subscription | QueueGroup) -> None:
        if self._congested(unit):
            self._ready.later(unit)
            return
        if isinstance(unit, Subscription):
            more = not self._release(unit) or self._delivery.to_subscription(unit)
        else:
            held = [member for member in unit.members if not self._release(member)]
            more = bool(held) or self._delivery.to_group(unit)
        if more:
            self._ready.again(unit)

    def _congested(self, unit: Subscription | QueueGroup) -> bool:
        if isinstance(unit, Subscription):
            return self._bus.congested(unit.state.inbox)
        # The others get what one of them does not take.
        return bool(unit.members) and all(self._bus.congested(member.state.inbox) for member in unit.members)

    def _release(self, subscription: Subscription) -> bool:
        if subscription.hold is Hold.NONE or not subscription.started or not subscription.active:
            return True
        return self._redelivery.release(subscription)
