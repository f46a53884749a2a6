"""The server's actions on recovered subscriptions at its start, also in words.

Facts: filestore.md sections 4.1 to 4.3.

ghost      warned of, and a Delete is appended to subs.dat active     its pending messages are sent again, then new
ones while fewer than its maximum are pending others     nothing

A pending message that is gone is acknowledged (Ack); one that cannot be read stays pending and is logged. Every new
message that is sent is recorded (Msg). So the records determine the future size of subs.dat, as long as no client
answers and none is found dead.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from stantools.escaping import escape, text
from stantools.format.layout import RECORD_HEADER_SIZE
from stantools.format.proto import store_pb2 as pb
from stantools.format.quoting import quote
from stantools.inspection.forecast import report
from stantools.inspection.forecast.channel_forecast import ChannelForecast, Forecast
from stantools.inspection.subscribers import Subscriber
from stantools.store.sublog import SubStatus


@dataclass
class Startup:
    """The result for one channel."""

    log: list[str] = field(default_factory=list)
    appended: int = 0  #: bytes that are appended to subs.dat

    def _record(self, message: pb.SubStateDelete | pb.SubStateUpdate) -> None:
        self.appended += RECORD_HEADER_SIZE + message.ByteSize()


def restore_subscriptions(channel: ChannelForecast) -> Startup:
    """Forecasts the recovery of subscriptions into memory."""
    startup = Startup()
    shadows: set[bytes] = set()
    for each in channel.subscriptions.having(SubStatus.SHADOW, SubStatus.GHOST):
        state = each.state
        if each.status is SubStatus.SHADOW:
            if state.q_group in shadows:
                startup.log.append(
                    report.warning(
                        f"Duplicate shadow durable queue consumer (subid={state.id})"
                        f" for group {quote(text(state.q_group))}"
                    )
                )
            shadows.add(state.q_group)
        else:
            startup.log.append(
                report.warning(
                    f"Not recovering ghost durable queue subscriber: [{text(state.client_id)}]:[{text(state.q_group)}]"
                    f" subject={channel.name} inbox={text(state.inbox)}"
                )
            )
            startup._record(pb.SubStateDelete(id=state.id))
    return startup


def start_delivery(channel: ChannelForecast) -> Startup:
    """Forecasts redelivery and the first delivery of new messages in one channel."""
    return _ForecastDelivery(channel).run()


@dataclass
class _ActiveSubscription:
    """An active subscription during delivery."""

    state: pb.SubState
    pending: set[int]

    @property
    def stalled(self) -> bool:
        return len(self.pending) >= self.state.max_in_flight


class _ForecastDelivery:
    def __init__(self, channel: ChannelForecast) -> None:
        self._channel = channel
        self._found = channel.lookups.found().pairs()
        self._startup = Startup()

    def run(self) -> Startup:
        groups: dict[bytes, list[_ActiveSubscription]] = {}
        for each in self._channel.subscriptions.having(SubStatus.ACTIVE):
            member = _ActiveSubscription(each.state, set(each.pending))
            self._redeliver(member)
            if each.state.q_group:
                groups.setdefault(each.state.q_group, []).append(member)
            else:
                self._send_new([member], each.state.last_sent)
        for name, members in groups.items():
            states = (each.state for each in self._channel.subscriptions if each.state.q_group == name)
            self._send_new(members, max(state.last_sent for state in states))
        return self._startup

    def _redeliver(self, member: _ActiveSubscription) -> None:
        sent: set[int] = set()
        for sequence in sorted(member.pending):
            if self._fails(sequence):
                self._log_redelivery(member, sequence)
            elif self._next(sequence) == sequence:
                sent.add(sequence)
            else:
                member.pending.discard(sequence)
                self._startup._record(pb.SubStateUpdate(id=member.state.id, seqno=sequence))
        if not sent:
            return
        # A message that could be sent now has a time to expire. The server reads its list once more up to there.
        for sequence in sorted(member.pending):
            if sequence in sent:
                break
            self._log_redelivery(member, sequence)

    def _log_redelivery(self, member: _ActiveSubscription, sequence: int) -> None:
        self._startup.log.append(
            report.error(
                f"Error getting message for redelivery subid={member.state.id}, seq={sequence},"
                f" err={self._channel.lookups.errors.get(sequence, '...')}"
            )
        )

    def _send_new(self, members: list[_ActiveSubscription], last_sent: int) -> None:
        ready = [member for member in members if not member.stalled]
        sequence = self._next(last_sent + 1)
        while ready and sequence is not None:
            if self._fails(sequence):
                reason = self._channel.lookups.errors.get(sequence, "...")
                self._startup.log.append(
                    report.error(f"Error looking up message {self._channel.name}:{sequence} ({reason})")
                )
                return
            member = min(ready, key=lambda each: len(each.pending))
            member.pending.add(sequence)
            self._startup._record(pb.SubStateUpdate(id=member.state.id, seqno=sequence))
            ready = [each for each in ready if not each.stalled]
            sequence = self._next(sequence + 1)

    def _fails(self, sequence: int) -> bool:
        failing = self._channel.lookups.failing
        return bool(failing) and sequence in failing

    def _next(self, sequence: int) -> int | None:
        """Returns the first existing sequence from this one on."""
        place = bisect_left(self._found, sequence, key=lambda pair: pair[1])
        if place == len(self._found):
            return None
        return max(sequence, self._found[place][0])


_KEPT = {
    SubStatus.OFFLINE_DURABLE: "kept, and offline until its client comes back",
    SubStatus.SHADOW: "kept: it holds the position of its queue group until a member comes back",
    SubStatus.GHOST: "deleted from subs.dat, because its client is not in clients.dat",
    SubStatus.ORPHAN: "dropped, because its client is not in clients.dat; its records stay in the file",
}


def subscription_outlook(forecast: Forecast, channel: str, number: int) -> str:
    """Describes in one sentence the effect of a start on a subscription; names in it are safe to show."""
    if not forecast.starts:
        reason = f": {escape(forecast.error)}" if forecast.error else ""
        return f"the server does not start{reason}"
    found = forecast.channels.get(channel) if forecast.recovered else None
    if found is None:
        return "not seen: the server starts over" if not forecast.recovered else "not seen: the channel is not"
    one = next(iter(found.subscriptions.with_ids([number])), None)
    if one is None:
        return "not seen: its records lie after the offset where the server stops reading"
    if one.status in _KEPT:
        return _KEPT[one.status]
    return _delivery(found, one)


def _delivery(channel: ChannelForecast, one: Subscriber) -> str:
    group = (one.state.q_group, one.state.is_durable)
    # The members of a queue group continue after the last message sent to any of them.
    same = (each for each in channel.subscriptions if group[0] and (each.state.q_group, each.state.is_durable) == group)
    sent = max((each.state.last_sent for each in same), default=one.state.last_sent)
    again = f"{len(one.pending)} pending sent again, " if one.pending else ""
    stop = channel.stalls_at
    if stop is not None and (stop > sent or stop in one.pending):
        return f"kept; {again}delivery stops at {stop}: {escape(channel.stall_error) or 'it cannot be read'}"
    if sent > channel.last_seq:
        return f"kept; {again}nothing new before sequence {sent + 1}, and the last message is {channel.last_seq}"
    if sent == channel.last_seq:
        return f"kept; {again}then new messages"
    return f"kept; {again}then from {max(sent + 1, channel.first_seq)} on"
