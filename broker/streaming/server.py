"""The streaming server: its parts, put together, and how it starts and stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker import log
from broker.stores.interface import StorageError
from broker.streaming.acknowledgements import Acknowledgements
from broker.streaming.channels import Channels
from broker.streaming.clients import Clients
from broker.streaming.connecting import Connecting
from broker.streaming.context import Context, Statistics
from broker.streaming.delivery import Delivery, Sender
from broker.streaming.detection import detect
from broker.streaming.heartbeats import Heartbeats
from broker.streaming.ids import new_id
from broker.streaming.lifetimes import Ageing, Inactivity
from broker.streaming.names import Subjects
from broker.streaming.ports import Role
from broker.streaming.publishing import Publishing
from broker.streaming.recovery import Recovery, StartError, recover_server
from broker.streaming.redelivery import Redelivery
from broker.streaming.removal import Removal
from broker.streaming.requests import Request, one_by_one
from broker.streaming.serving import Ready, Serving
from broker.streaming.subscribing import Subscribing
from broker.streaming.timers import Timers
from broker.wire.subjects import valid_subject

if TYPE_CHECKING:
    from broker.stores.interface import Store
    from broker.streaming.options import StreamingOptions
    from broker.streaming.partitioning import Partitions
    from broker.streaming.ports import Bus, Clock, Driver
    from stantools.format.proto import protocol_pb2 as protocol
    from stantools.format.proto import store_pb2 as pb


class StreamingServer:
    """A NATS Streaming server, without sockets, clock and files.

    What comes from the bus is handled at once, except that storing is completed by `commit`, which the driver calls
    when there is nothing more to hand over at the moment.

    Args:
        options: Options.
        store: A store that nobody has used yet.
        bus: NATS.
        clock: The time.
        driver: Calls `commit` and `run_timers` as asked.
        server_id: What this server calls itself; a new id if empty.

    Attributes:
        options: As given.
        store: As given.
        server_id: What this server calls itself.
        clients: Who is connected.
        channels: The channels.
        statistics: Counters.
        started_at: When it was started (ns since the epoch), 0 before.
        ready: It takes requests.
        subjects: What it listens on, as soon as the store was read.
        recovered: How many channels were found in the store; None if it was empty.
    """

    def __init__(
        self,
        options: StreamingOptions,
        store: Store,
        bus: Bus,
        clock: Clock,
        driver: Driver,
        *,
        server_id: str = "",
    ) -> None:
        timers = Timers(clock, driver)
        self._context = context = Context(options, store, bus, clock, driver, timers)
        self._bus = bus
        self._timers = timers
        self.options = options
        self.store = store
        self.clock = clock
        self.server_id = server_id or new_id()
        self.started_at = 0
        self.ready = False
        self.subjects: Subjects | None = None
        self.recovered: int | None = None
        self._stopped = False

        self.clients = clients = Clients(store)
        self.channels = channels = Channels(store)
        self._ready_units = ready = Ready(driver, timers)
        sender = Sender(context)
        self._acknowledgements = Acknowledgements(channels, ready, clock)
        redelivery = Redelivery(context, sender, self._acknowledgements)
        self._serving = Serving(bus, ready, Delivery(context, sender, redelivery.arm), redelivery)
        self._publishing = Publishing(context, clients, channels, self._serving)
        settle = self._publishing.commit
        self._removal = Removal(context, clients, channels, redelivery, settle)
        self._subscribing = Subscribing(
            context, clients, channels, self._acknowledgements, self._removal, ready, settle
        )
        self._heartbeats = Heartbeats(context, clients, self._removal.close_client)
        self._ageing = Ageing(context)
        self._inactivity = Inactivity(context, channels, settle, self._ageing.stop)
        self._recovery = Recovery(clients, channels, self._subscribing)
        self._partitions: Partitions | None = None

        self._publishing.on_stored = self._ageing.watch
        self._removal.on_closed = self._heartbeats.stop
        self._removal.on_ended = self._inactivity.watch
        self._subscribing.on_subscribed = self._inactivity.stop
        channels.on_created += (self._ageing.watch, self._inactivity.watch)
        if options.partitioning:
            self._partition()

    @property
    def statistics(self) -> Statistics:
        """Counters since the start."""
        return self._context.statistics

    def start(self, ready: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Reads the store, makes sure to be alone, and begins to listen.

        Args:
            ready: Called when clients can connect, maybe from within this call.
            failed: Called with the reason why they never will, maybe from within this call.
        """
        self.started_at = self.clock.wall()

        def recover() -> None:
            try:
                self._recover()
            except (StartError, StorageError) as error:
                failed(str(error))
                return
            subjects = self.subjects
            assert subjects is not None
            if not valid_subject(subjects.discovery):
                failed("nats: invalid subject")
            elif self._partitions is None and self.options.detect:
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
        """Completes what was handed over: stores, delivers, acknowledges; and serves who else may get messages."""
        if self._stopped:
            return
        if not self._publishing.sleeping:
            self._publishing.commit()
        self._serving.run()

    def run_timers(self) -> None:
        """Does what is due."""
        if not self._stopped:
            self._timers.run()

    def servers_discovered(self) -> None:
        """Tells that NATS has found other servers: the check of partitions is repeated.

        Facts: streaming-protocol.md section 25.4.
        """
        if self._partitions is not None and self.ready:
            self._partitions.check_again()

    def stop(self) -> None:
        """Completes what was handed over and closes the store. Clients are not told.

        Raises:
            StorageError: The store could not write everything.
        """
        if self._stopped:
            return
        log.STREAMING.info("Shutting down.")
        self._publishing.commit()
        self._stopped = True
        self.ready = False
        self._timers.clear()
        self.store.close()

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

    def _listen(self, ready: Callable[[], None]) -> None:
        subjects = self.subjects
        assert subjects is not None
        connecting = Connecting(self._context, subjects, self.clients, self._heartbeats, self._removal.close_client)
        listen = self._bus.listen
        listen(Role.GENERAL, subjects.discovery, one_by_one(connecting.receive))
        if not self._context.options.any_publish_subject:
            self._publishing.prefix = len(subjects.publish) + 1
        for channel in self._partitions.entries if self._partitions is not None else (b">",):
            listen(Role.GENERAL, subjects.publish + b"." + channel, self._publishing.receive)
        listen(Role.GENERAL, subjects.subscribe, one_by_one(self._subscribing.receive))
        listen(Role.GENERAL, subjects.unsubscribe, one_by_one(self._removal.receive_unsubscribe))
        listen(Role.GENERAL, subjects.sub_close, one_by_one(self._removal.receive_close))
        listen(Role.GENERAL, subjects.close, one_by_one(self._removal.receive_client_close))
        listen(Role.GENERAL, subjects.pings, one_by_one(self._heartbeats.receive_ping))
        self._log_subjects(subjects)

        def listening() -> None:
            if self._stopped:
                return
            self.ready = True
            ready()
            for client in self.clients:
                self._heartbeats.start(client)
            for channel in self.channels:
                self._ageing.watch(channel)
                self._inactivity.watch(channel)
            active, self._recovery.active = self._recovery.active, []
            for subscription in active:
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

    def _partition(self) -> None:
        """Lets the other parts ask which channels are here, and wait for clients that are not known yet."""
        from broker.streaming.partitioning import Partitions, Waiting

        self._partitions = partitions = Partitions(self._context, self.server_id.encode())
        waiting = Waiting(self._context)

        def publish(request: Request, message: protocol.PubMsg) -> bool:
            def then(came: bool) -> None:
                if came:
                    self._publishing.examine(request)
                else:
                    self._publishing.refuse(request, message)

            return waiting.add(message.client_id, message.conn_id, len(request.payload), then)

        def subscribe(request: Request, message: pb.SubscriptionRequest) -> bool:
            def then(came: bool) -> None:
                if came:
                    self._subscribing.subscribe(request, message)
                else:
                    self._subscribing.refuse(request)

            if not waiting.add(message.client_id, b"", len(request.payload), then):
                self._subscribing.refuse(request)
            return True

        self._publishing.postpone = publish
        self._subscribing.postpone = subscribe
        self._subscribing.serves = partitions.serves
        self._removal.serves = partitions.serves
        self.clients.on_registered.append(waiting.registered)
