"""The streaming server: its parts, and how it starts and stops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from broker import log
from broker.stores.ciphertext import suspected
from broker.stores.interface import DamagedStoreError, StorageError
from broker.streaming.commits import SHARE, SLEEPING, Commits
from broker.streaming.connect import ConnectRules, Heartbeats
from broker.streaming.context import Context, StreamingStatistics, new_id
from broker.streaming.delivery import Dispatcher
from broker.streaming.inflight import Acknowledgements, DeliveryQueue, Sender
from broker.streaming.names import Subjects
from broker.streaming.ports import Role
from broker.streaming.publish import PublishRules
from broker.streaming.redelivery import Redelivery
from broker.streaming.registry import Channels, Clients
from broker.streaming.requests import per_request
from broker.streaming.startup import ServerStartError, StateRecovery, detect, recover_server
from broker.streaming.state import RECOVERED
from broker.streaming.subscribe import SubscribeRules
from broker.streaming.unsubscribe import UnsubscribeRules
from stantools.escaping import escape
from stantools.nats.subjects import valid_subject
from stantools.notation import some_of

if TYPE_CHECKING:
    from pathlib import Path

    from broker.stores.interface import Lock
    from broker.streaming.faulttolerance import FaultTolerance
    from broker.streaming.partitions import Partitions
    from broker.streaming.ports import ClusterMember
    from broker.streaming.requests import StreamingRequest


class StreamingServer:
    """A NATS Streaming server, without sockets, clock and files.

    Messages from the bus are handled at once, except that `commit` completes their storage. The driver calls it when
    no more messages are at hand. A server of a fault-tolerant group has a `lock` of the store. A node of a cluster
    has a `member`; it is started when it becomes leader and stopped when it no longer is, and a new server takes its
    place.
    """

    def __init__(
        self,
        context: Context,
        *,
        server_id: str = "",
        lock: Lock | None = None,
        member: ClusterMember | None = None,
    ) -> None:
        self._context = context
        self._bus = context.bus
        self._driver = context.driver
        self._timers = context.timers
        self.options = options = context.options
        self.store = context.store
        self.store.wake = context.driver.wake
        self.clock = context.clock
        self.member = member
        self.server_id = server_id or new_id()
        self.started_at = 0  #: start time (ns since the epoch); 0 before
        self.ready = False  #: requests are accepted
        self.subjects: Subjects | None = None  #: None until the store was read
        self.recovered: int | None = None  #: channels found in the store; None if it was empty
        self.damaged: Path | None = None  #: directory of a store that the server could not start with
        self._stopped = False

        self._partitions: Partitions | None = None
        if options.partitioning:
            from broker.streaming.partitions import Partitions

            self._partitions = Partitions(context, self.server_id.encode())
        self._group: FaultTolerance | None = None
        if lock is not None:
            from broker.streaming.faulttolerance import FaultTolerance

            self._group = FaultTolerance(context, self.server_id.encode(), lock)
        partitions = self._partitions
        waiting = None if partitions is None else partitions.waiting
        self.clients = clients = Clients(context, waiting)
        self.channels = channels = Channels(context)
        self._ready = ready = DeliveryQueue(context)
        sender = Sender(context)
        acknowledgements = Acknowledgements(context, channels, ready)
        redelivery = Redelivery(context, sender, acknowledgements)
        self._serving = Dispatcher(context, ready, sender, redelivery)
        self._commits = commits = Commits(context, channels, self._serving)
        self._publishing = PublishRules(context, clients, channels, commits, waiting)
        self._unsubscribing = UnsubscribeRules(context, clients, channels, redelivery, commits, partitions)
        self._subscribing = SubscribeRules(
            context, clients, channels, acknowledgements, self._unsubscribing, ready, commits, partitions
        )
        self._heartbeats = Heartbeats(context, clients, self._unsubscribing)
        self._recovery = StateRecovery(clients, channels, self._subscribing)

    @property
    def statistics(self) -> StreamingStatistics:
        return self._context.statistics

    @property
    def state(self) -> str:
        """State among servers, as monitoring shows it."""
        if self.member is not None:
            return "CLUSTERED"
        if self._group is None:
            return "STANDALONE"
        return "FT_ACTIVE" if self._group.active else "FT_STANDBY"

    def start(self, ready: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Waits for activation in a group, reads the store, makes sure to be alone, and begins to listen.

        Calls `ready` when clients can connect, or `failed` with the reason why they cannot, maybe during this call.
        """
        self.started_at = self.started_at or self.clock.wall()
        begin = partial(self._begin, ready, failed)
        if self._group is None:
            begin()
        else:
            self._group.start(begin, failed)

    def _begin(self, ready: Callable[[], None], failed: Callable[[str], None]) -> None:

        def recover() -> None:
            try:
                self._recover()
            except (ServerStartError, StorageError) as error:
                self.damaged = error.directory if isinstance(error, DamagedStoreError) else None
                failed(str(error))
                return
            subjects = self.subjects
            assert subjects is not None
            if not valid_subject(subjects.discovery):
                failed("nats: invalid subject")
            elif self._partitions is None and self._group is None and self.member is None and self.options.detect:
                detect(self._context, subjects.discovery, lambda: self._listen(ready), failed)
            else:
                self._listen(ready)

        if self._partitions is None:
            recover()
        elif not self._partitions.entries:
            failed("stan: no configured channel")
        else:
            self._partitions.check(recover, failed)

    def commit(self) -> None:
        """Stores, delivers and acknowledges the messages at hand, and serves subscriptions that are ready."""
        if self._stopped:
            return
        commits = self._commits
        if not ((commits.state is SLEEPING or commits.delay.awaited) and commits.postpone()):
            if commits.waits_for_disk:
                self._driver.write_now()
            commits.commit(SHARE)
        if self._ready.units:
            self._serving.run(SHARE)

    def run_timers(self) -> None:
        if not self._stopped:
            self._timers.run()

    def deliver_new(self, names: Iterable[bytes]) -> None:
        """Delivers messages that other servers have written to channels."""
        for name in names:
            if (channel := self.channels.get(name)) is not None:
                self._commits.touch(channel)

    def servers_discovered(self) -> None:
        """Repeats the check of partitions, as NATS has found other servers (streaming-protocol.md section 25.4)."""
        if self._partitions is not None and self.ready:
            self._partitions.repeat_check()

    def stop(self) -> None:
        """Completes the work at hand and closes the store. Clients get no notice.

        Raises StorageError if the store could not write everything.
        """
        if self._stopped:
            return
        if self.member is None:
            log.STREAMING.info("Shutting down.")
        self._commits.commit()
        self.store.settle()
        self._commits.commit()
        self._stopped = True
        self.ready = False
        self._timers.clear()
        try:
            self.store.close()
        finally:
            if self._group is not None:
                self._group.stop()

    def _recover(self) -> None:
        log.STREAMING.info("Recovering the state...")
        recovered = self.store.recover()
        self.subjects = Subjects.of(recover_server(self.store, recovered, self.options))
        if recovered is None:
            log.STREAMING.info("No recovered state")
        else:
            self._recovery.restore(recovered)
            self.recovered = len(self.channels)
            log.STREAMING.info("Recovered %d channel(s)", self.recovered)
            if self.store.crc is not None:  # clients get the stored bytes
                _warn_of_ciphertext(suspected(recovered.channels, self.store.crc))

    def _listen(self, ready: Callable[[], None]) -> None:
        subjects = self.subjects
        assert subjects is not None
        connecting = ConnectRules(
            self._context, subjects, self.clients, self._heartbeats, self._unsubscribing, self._commits
        )
        listen = self._bus.listen

        def requests(subject: bytes, answer: Callable[[StreamingRequest], None]) -> None:
            listen(Role.GENERAL, subject, per_request(answer))

        requests(subjects.discovery, connecting.receive)
        if not self._context.options.any_publish_subject:
            self._publishing.prefix = len(subjects.publish) + 1
        for channel in self._partitions.entries if self._partitions is not None else (b">",):
            listen(Role.GENERAL, subjects.publish + b"." + channel, self._publishing.receive, gathered=True)
        requests(subjects.subscribe, self._subscribing.receive)
        requests(subjects.unsubscribe, self._unsubscribing.receive_unsubscribe)
        requests(subjects.sub_close, self._unsubscribing.receive_close)
        requests(subjects.close, self._unsubscribing.receive_client_close)
        requests(subjects.pings, self._heartbeats.receive_ping)
        self._log_subjects(subjects)

        def listening() -> None:
            if self._stopped:
                return
            self.ready = True
            ready()
            for client in self.clients:
                self._heartbeats.start(client)
            for channel in self.channels:
                self.channels.expiry.watch(channel)
            active, self._recovery.active = self._recovery.active, []
            for subscription in active:
                if subscription.phase is RECOVERED:
                    self._subscribing.start(subscription)

        self._bus.barrier(listening)

    def _log_subjects(self, subjects: Subjects) -> None:
        for label, subject in (
            ("Discover subject:           ", subjects.discovery),
            ("Publish subjects root:      ", subjects.publish)
            if self._partitions is not None
            else ("Publish subject:            ", subjects.publish + b".>"),
            ("Subscribe subject:          ", subjects.subscribe),
            ("Subscription Close subject: ", subjects.sub_close),
            ("Unsubscribe subject:        ", subjects.unsubscribe),
            ("Close subject:              ", subjects.close),
        ):
            log.STREAMING.debug("%s%s", label, subject.decode(errors="replace"))


def _warn_of_ciphertext(channels: list[bytes]) -> None:
    if channels:
        names = some_of([escape(each) for each in channels], 3)
        log.STREAMING.warning(
            "Messages of %d channel(s) may be encrypted (%s), encryption is off: clients get the stored bytes",
            len(channels),
            names,
        )
