"""Delivery of messages from this process and from other servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from broker.nats.client import CLOSED, BrokerClient, NatsSubscription
from broker.nats.recipients import MessageRecipients
from broker.nats.remote_interest import draw
from stantools.nats.frames import PAYLOAD_SIZE, SUBJECT, SUBJECT_SIZE, rows
from stantools.nats.kernels import hand_out, hand_out_runs, subject_runs

if TYPE_CHECKING:
    from broker.nats.subscriptions import SubjectRoute
    from broker.reserved import ReservedSubjects
    from broker.rounds import LoopRounds
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames, Payloads


class Router:
    """Delivers messages from this process and from other servers. `dirty` registers connections with output."""

    def __init__(
        self, recipients: MessageRecipients, rounds: LoopRounds, dirty: Callable[[Iterable[Any]], None]
    ) -> None:
        self.tracing = False  #: log protocol messages
        self.counters = recipients.counters  #: messages and bytes of all clients
        self._recipients = recipients
        self._subscriptions = recipients.subscriptions
        self._rounds = rounds
        self._dirty = dirty

    # Single messages

    def arrive(self, subject: bytes, reply: bytes, payload: bytes, header_size: int, queues: tuple[bytes, ...]) -> None:
        """Delivers a message from another server to all clients outside of queue groups, and a member of each queue."""
        route = self._subscriptions.route(subject)
        self.counters.in_msgs += 1
        self.counters.in_bytes += len(payload)
        groups = [group for group in route.queues if group[0].queue in queues]
        self._hand_one(self._recipients.of_one(None, route.plain, groups), subject, reply, payload, header_size)

    def publish_one(
        self,
        origin: BrokerClient,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_size: int,
        *,
        keep: bool = False,
    ) -> int:
        """Delivers one message. Returns the number of receivers; another server counts as one."""
        self._recipients.count_input(origin, 1, len(payload))
        route = self._subscriptions.route(subject, keep=keep)
        return self._deliver_one(origin, route, subject, reply, payload, header_size)

    def _deliver_one(
        self,
        origin: BrokerClient,
        route: SubjectRoute,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_size: int,
    ) -> int:
        only = route.only
        if only is not None and not only.limit and only.receives(origin):
            # usually the requester, for the answer
            self._recipients.count_output(only, 1, len(payload))
            only.client.take_one(only, subject, reply, payload, header_size)
            return 1
        if route.remote_interest is None:
            chosen = self._recipients.of_one(origin, route.plain, route.queues)
            count = len(chosen)
        else:
            near, far = draw(origin, route.queues, route.remote_interest)
            chosen = self._recipients.of_one(origin, route.plain, [(each,) for each in near])
            count = len(chosen) + len(far)
            for server, queues in far.items():
                server.deliver(subject, reply, queues, header_size, payload)
        self._hand_one(chosen, subject, reply, payload, header_size)
        return count

    def hand_to(
        self,
        origin: BrokerClient,
        to: bytes,
        subject: bytes,
        reply: bytes,
        payload: bytes,
        header_size: int,
        group: bytes,
    ) -> None:
        """Delivers one message to the subscribers of `to`, or to a member of the queue group; they see `subject`."""
        self._recipients.count_input(origin, 1, len(payload))
        route = self._subscriptions.route(to, keep=True)
        if group:
            chosen = self._recipients.of_one(origin, (), [route.members(group)])
        else:
            chosen = self._recipients.of_one(origin, route.plain, route.queues)
        self._hand_one(chosen, subject, reply, payload, header_size)

    def _hand_one(
        self, receivers: Iterable[NatsSubscription], subject: bytes, reply: bytes, payload: bytes, header_size: int
    ) -> None:
        for to in receivers:
            self._recipients.count_output(to, 1, len(payload))
            to.client.take_one(to, subject, reply, payload, header_size)

    # Rows of a table

    def hand_rows(self, origin: BrokerClient, to: bytes, buffer: Buffer, frames: Frames) -> None:
        """Delivers the rows of a table to the subscribers of `to`, which must satisfy `Subscriptions.takes_rows`."""
        size = int(frames[:, PAYLOAD_SIZE].sum())
        self._recipients.count_input(origin, len(frames), size)
        for receiver in self._subscriptions.route(to, keep=True).plain:
            if receiver.receives(origin):
                self._recipients.hand_rows(receiver, buffer, frames, 0, len(frames), size)

    def publish_rows(self, origin: BrokerClient, buffer: Buffer, frames: Frames, reserved: ReservedSubjects) -> None:
        """Delivers the rows of a table, each to its subject; rows for reserved subjects are dropped."""
        self._recipients.count_input(origin, len(frames), int(frames[:, PAYLOAD_SIZE].sum()))
        begin, last = 0, None
        for at, after in pairwise((*subject_runs(buffer, frames, 0, len(frames)), len(frames))):
            start, length = frames[at, SUBJECT : SUBJECT_SIZE + 1].tolist()
            subject = bytes(memoryview(buffer)[start : start + length])
            if subject in reserved:
                self._hand_run(last, buffer, frames, begin, at)
                begin, last = after, None
                continue
            route = self._subscriptions.route(subject, keep=after - at > 1)
            only = route.only
            if only is not None and (only.handler is not None or only.limit or not only.receives(origin)):
                only = None
            if only is not last:
                self._hand_run(last, buffer, frames, begin, at)
                begin, last = at, only
            if only is None:
                for _, reply, header, payload in rows(buffer, frames, at, after):
                    self._deliver_one(origin, route, subject, reply, header + payload, len(header))
        self._hand_run(last, buffer, frames, begin, len(frames))

    def _hand_run(self, to: NatsSubscription | None, buffer: Buffer, frames: Frames, begin: int, end: int) -> None:
        """Hands rows to a socket; for None there is no receiver."""
        if to is not None:
            size = int(frames[begin, PAYLOAD_SIZE] if end - begin == 1 else frames[begin:end, PAYLOAD_SIZE].sum())
            self._recipients.hand_rows(to, buffer, frames, begin, end, size)

    # Payloads of a block, and messages without replies and headers

    def publish_runs(self, origin: BrokerClient, runs: Sequence[tuple[bytes, int, int]], block: Payloads) -> None:
        """Delivers payloads of a block to several subjects; each run is a subject with its range of rows."""
        if origin.state is CLOSED:
            return
        if origin.permit is not None:
            runs = [run for run in runs if origin.may_publish(run[0], 0)]
        origin.last_activity = self._rounds.now
        place, total = 0, len(runs)
        while place < total:
            if not self.tracing:
                place, count, size, fresh = hand_out_runs(runs, block, place, self._subscriptions.known.values)
                self._account_handed_out(origin, count, size, fresh)
                if place == total:
                    return
            subject, begin, end = runs[place]
            if subject and begin < end:
                self._deliver_block(origin, subject, block, begin, end)
            place += 1

    def publish_each(self, origin: BrokerClient, messages: Sequence[tuple[bytes, bytes]]) -> Sequence[int]:
        """Delivers messages, each with its subject, to receivers that keep up; messages without a subject are dropped.

        Returns the positions of the messages with congested receivers.
        """
        if origin.state is CLOSED:
            return ()
        if origin.permit is not None:
            messages = [each if origin.may_publish(each[0], 0) else (b"", b"") for each in messages]
        origin.last_activity = self._rounds.now
        late: list[int] = []
        place, total = 0, len(messages)
        while place < total:
            if not self.tracing:
                place, count, size, fresh = hand_out(messages, place, self._subscriptions.known.values, True)
                self._account_handed_out(origin, count, size, fresh)
                if place == total:
                    break
            subject, payload = messages[place]
            if subject and self._subscriptions.congested(subject):
                late.append(place)
            elif subject:
                self.publish_one(origin, subject, b"", payload, 0, keep=True)
            place += 1
        return late

    def _account_handed_out(self, origin: BrokerClient, count: int, size: int, fresh: Sequence[Any]) -> None:
        """Counts messages that a kernel has added to the output of clients; `fresh` had none before."""
        if fresh:
            self._dirty(fresh)
        self._recipients.count_input(origin, count, size)
        self.counters.out_msgs += count
        self.counters.out_bytes += size

    def _deliver_block(self, origin: BrokerClient, subject: bytes, block: Payloads, begin: int, end: int) -> None:
        route = self._subscriptions.route(subject, keep=True)
        count, size = end - begin, block.size(begin, end)
        self._recipients.count_input(origin, count, size)
        if route.queues or route.remote_interest is not None or any(s.limit for s in route.plain):
            for row in range(begin, end):
                self._deliver_one(origin, route, subject, b"", block.payload(row), 0)
            return
        for to in route.plain:
            if to.receives(origin):
                self._recipients.count_output(to, count, size)
                to.client.take_block(to, subject, block, begin, end)
