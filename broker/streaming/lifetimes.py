"""What ends by time: messages that are too old, channels that nobody uses.

Facts: streaming-protocol.md sections 10.10 and 21.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import StorageError
from broker.streaming.names import quoted
from stantools.store.limits import format_duration

if TYPE_CHECKING:
    from broker.streaming.channels import Channel, Channels
    from broker.streaming.context import Context

#: Messages that are too old are removed together, not each for itself.
_AGEING_STEP: Final = 20_000_000
#: An error is tried again after this.
_RETRY: Final = 5_000_000_000


class Ageing:
    """Has messages removed that are older than the channel allows."""

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._timers = context.timers

    def watch(self, channel: Channel) -> None:
        """Begins with a channel, or goes on after messages were stored, if it has a limit of age."""
        if channel.messages.limits.max_age_ns > 0 and (channel.ageing is None or not channel.ageing.pending):
            self._expire(channel)

    def stop(self, channel: Channel) -> None:
        """Leaves a channel alone from now on."""
        self._timers.cancel(channel.ageing)
        channel.ageing = None

    def _expire(self, channel: Channel) -> None:
        now = self._clock.wall()
        try:
            following = channel.messages.expire(now)
        except StorageError as error:
            log.STREAMING.error("Unable to expire messages of channel %s: %s", quoted(channel.name), error)
            following = now + _RETRY
        if following is not None:
            delay = max(following - now, _AGEING_STEP)
            channel.ageing = self._timers.after(delay, partial(self._expire, channel))


class Inactivity:
    """Deletes channels that have had neither a subscription nor a message for as long as they may.

    Args:
        context: The world.
        channels: All channels.
        settle: Commits what was published.
        forget: Called with a channel that was deleted.
    """

    def __init__(
        self,
        context: Context,
        channels: Channels,
        settle: Callable[[], None],
        forget: Callable[[Channel], None],
    ) -> None:
        self._clock = context.clock
        self._timers = context.timers
        self._channels = channels
        self._settle = settle
        self._forget = forget

    def watch(self, channel: Channel) -> None:
        """Starts the time of a channel that is new, recovered, or may have lost its last active subscription."""
        limit = channel.messages.limits.max_inactivity_ns
        if limit > 0 and not channel.active:
            self._arm(channel, limit)
            log.STREAMING.debug(
                "Channel %s delete timer set to fire in %s", quoted(channel.name), format_duration(limit)
            )

    def stop(self, channel: Channel) -> None:
        """Stops the time of a channel: somebody has subscribed."""
        if channel.idle is not None:
            self._timers.cancel(channel.idle)
            channel.idle = None
            log.STREAMING.debug("Channel %s delete timer stopped", quoted(channel.name))

    def _arm(self, channel: Channel, delay: int) -> None:
        self._timers.cancel(channel.idle)
        channel.idle = self._timers.after(delay, partial(self._fire, channel))

    def _fire(self, channel: Channel) -> None:
        channel.idle = None
        # In order with publishes: what has come is stored first, and counts as activity.
        self._settle()
        if channel.active:
            log.STREAMING.debug(
                "Channel %s cannot be deleted: preventDelete=%s inProgress=%s hasActiveSubs=%s",
                quoted(channel.name),
                "false",
                "false",
                "true",
            )
            return
        limit = channel.messages.limits.max_inactivity_ns
        if channel.last_activity and (rest := channel.last_activity + limit - self._clock.monotonic()) > 0:
            self._arm(channel, rest)
            log.STREAMING.debug(
                "Channel %s cannot be deleted now, reset timer to fire in %s",
                quoted(channel.name),
                format_duration(rest),
            )
            return
        log.STREAMING.debug("Channel %s is being deleted", quoted(channel.name))
        try:
            self._channels.delete(channel)
        except StorageError as error:
            log.STREAMING.error("Error deleting channel %s: %s", quoted(channel.name), error)
            self._arm(channel, limit)
            return
        self._forget(channel)
        log.STREAMING.info("Channel %s has been deleted", quoted(channel.name))
