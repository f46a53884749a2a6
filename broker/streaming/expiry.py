"""Expiry of old messages and unused channels.

Facts: streaming-protocol.md sections 10.10 and 21.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import log
from broker.stores.interface import StorageError
from stantools.format.quoting import quote
from stantools.notation import format_go_duration

if TYPE_CHECKING:
    from broker.streaming.context import Context
    from broker.streaming.state import Channel

#: shortest time (ns) between two removals of expired messages
_AGEING_STEP: Final = 20_000_000
#: delay (ns) of a retry after an error
_RETRY: Final = 5_000_000_000


class Expiry:
    """Removes messages older than their channel's limit, and channels unused for too long."""

    def __init__(self, context: Context, delete: Callable[[Channel], None]) -> None:
        self._clock = context.clock
        self._audience = context.audience
        self._timers = context.timers
        self._delete = delete

    def watch(self, channel: Channel) -> None:
        """Starts to watch a new or recovered channel."""
        self.stored(channel)
        self.idle(channel)

    def stored(self, channel: Channel) -> None:
        """Starts the timer for the first message of a channel to expire, after messages were stored."""
        if channel.messages.limits.max_age_ns > 0 and (channel.ageing is None or not channel.ageing.pending):
            self._expire(channel)

    def idle(self, channel: Channel) -> None:
        """Starts the inactivity timer of a channel that may have lost its last active subscription."""
        limit = channel.messages.limits.max_inactivity_ns
        if limit > 0 and not channel.active:
            self._arm(channel, limit)
            log.STREAMING.debug(
                "Channel %s delete timer set to fire in %s", quote(channel.name), format_go_duration(limit)
            )

    def used(self, channel: Channel) -> None:
        """Stops the inactivity timer: a client has subscribed."""
        if channel.idle is not None:
            self._timers.cancel(channel.idle)
            channel.idle = None
            log.STREAMING.debug("Channel %s delete timer stopped", quote(channel.name))

    def _expire(self, channel: Channel) -> None:
        now = self._clock.wall()
        try:
            following = channel.messages.expire(now)
        except StorageError as error:
            log.STREAMING.error("Unable to expire messages of channel %s: %s", quote(channel.name), error)
            following = now + _RETRY
        if self._audience is not None:
            self._audience.changed(channel)
        if following is not None:
            delay = max(following - now, _AGEING_STEP)
            channel.ageing = self._timers.after(delay, partial(self._expire, channel))

    def _arm(self, channel: Channel, delay: int) -> None:
        self._timers.cancel(channel.idle)
        channel.idle = self._timers.after(delay, partial(self._fire, channel))

    def _fire(self, channel: Channel) -> None:
        channel.idle = None
        if channel.active:
            log.STREAMING.debug(
                "Channel %s cannot be deleted: preventDelete=%s inProgress=%s hasActiveSubs=%s",
                quote(channel.name),
                "false",
                "false",
                "true",
            )
            return
        limit = channel.messages.limits.max_inactivity_ns
        now = self._clock.monotonic()
        # Messages that wait for a commit count as activity.
        last = now if channel.fresh or channel.messages.last > channel.visible else channel.last_activity
        if last and (rest := last + limit - now) > 0:
            self._arm(channel, rest)
            log.STREAMING.debug(
                "Channel %s cannot be deleted now, reset timer to fire in %s",
                quote(channel.name),
                format_go_duration(rest),
            )
            return
        log.STREAMING.debug("Channel %s is being deleted", quote(channel.name))
        try:
            self._delete(channel)
        except StorageError as error:
            log.STREAMING.error("Error deleting channel %s: %s", quote(channel.name), error)
            self._arm(channel, limit)
            return
        self._timers.cancel(channel.ageing)
        log.STREAMING.info("Channel %s has been deleted", quote(channel.name))
