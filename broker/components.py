"""Factory of the broker's parts; `broker.process` decides which of them are needed, and when."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.driver import LoopDriver, SystemClock
from broker.log import NATS
from broker.stores import open_store
from broker.streaming.context import Context, new_id
from broker.streaming.server import StreamingServer
from stantools.errors import StantoolsError
from stantools.notation import format_size

if TYPE_CHECKING:
    from broker.bus.jetstream_link import JetStreamLink
    from broker.config.broker_options import BrokerOptions, ChannelsOptions
    from broker.monitoring.monitoring_server import MonitoringServer
    from broker.nats.nats_server import NatsServer
    from broker.stores.interface import Lock, StateStore
    from broker.stores.jetstream.store import StreamBacking
    from broker.streaming.ports import ClusterMember, Recipients, StreamingBus
    from broker.streams.server import StreamsServer
    from broker.streams.streams_options import StreamsOptions
    from stantools.nats.channel_streams import StreamNames


class NatsStartError(StantoolsError):
    """The NATS side of the broker cannot start; the text is the whole log line."""


class BrokerParts:
    """Makes the parts of a broker.

    Args:
        options: The configuration.
        failed: Called with the reason when a part cannot continue.

    Attributes:
        options: The present configuration, replaced by a reload.
        server_id: Id of this run.
        monitoring: The monitoring server; None before `monitor`, and without one.
        streams: The streams of the NATS server; None before `serve_streams`, and without them.
    """

    def __init__(self, options: BrokerOptions, failed: Callable[[str], None]) -> None:
        self.options = options
        self.server_id = new_id()
        self.monitoring: MonitoringServer | None = None
        self.streams: StreamsServer | None = None
        self._failed = failed

    def link(self, channels: ChannelsOptions) -> tuple[JetStreamLink, StreamNames]:
        from broker.bus.jetstream_link import JetStreamLink
        from stantools.nats.channel_streams import StreamNames

        cluster_id = self.options.streaming.cluster_id
        link = JetStreamLink(self.options.connection, cluster_id, channels.domain)
        return link, StreamNames(cluster_id.decode(errors="replace"), channels.replicas)

    def store(self, backing: StreamBacking | None) -> StateStore:
        """Returns the store, still unread. `backing` are its streams; None for a store in files or memory.

        Raises `StantoolsError` if it is not available.
        """
        options = self.options
        return open_store(
            options.store,
            options.file,
            options.limits,
            options.encryption,
            cluster_id=options.streaming.cluster_id,
            backing=backing,
        )

    def streaming(
        self,
        store: StateStore,
        bus: StreamingBus,
        driver: LoopDriver,
        *,
        lock: Lock | None = None,
        audience: Recipients | None = None,
        member: ClusterMember | None = None,
    ) -> StreamingServer:
        """Returns the streaming server; the driver calls it from now on."""
        context = Context(self.options.streaming, store, bus, SystemClock(), driver, audience)
        driver.server = server = StreamingServer(context, server_id=self.server_id, lock=lock, member=member)
        return server

    def serve_streams(
        self,
        nats: NatsServer,
        options: StreamsOptions,
        store: StateStore,
        stack: contextlib.AsyncExitStack,
    ) -> Recipients | None:
        """Starts JetStream, whose rules commit at the end of rounds.

        Returns the audience for channels that are streams.
        """
        from broker.bus.streams import StreamsBus
        from broker.stores.streams.directory import StreamsDirectory
        from broker.streams.quota import QuotaLimits
        from broker.streams.server import StreamsServer
        from broker.streams.streams_options import LEVEL, VERSION

        NATS.info("Starting JetStream")
        place = StreamsDirectory(options.store_dir, temporary=options.temporary)
        limits = QuotaLimits(options.max_mem or place.machine_memory(), options.max_file or place.free_space())
        driver = LoopDriver(asyncio.get_running_loop(), self._failed, nats.rounds)
        driver.server = streams = self.streams = StreamsServer(
            StreamsBus(nats, self.options.streaming.discover_prefix),
            place,
            SystemClock(),
            driver,
            limits,
            preview=options.preview,
        )
        stack.callback(streams.stop)
        stack.callback(driver.stop)
        nats.version, nats.offers = VERSION, {"jetstream": True, "api_lvl": LEVEL}
        NATS.info("  Max Memory:      %s", format_size(limits.memory))
        NATS.info("  Max Storage:     %s", format_size(limits.file))
        NATS.info('  Store Directory: "%s"', place.path)
        if options.preview:
            NATS.info("  Clients of the preview are served as well")
        streams.start()
        if not options.from_channels:
            return None
        from broker.bus.channels import ChannelStreams

        NATS.info("  Channels are streams as well")
        return ChannelStreams(streams, SystemClock(), options.store_dir if store.kind == "FILE" else None)

    async def monitor(self, nats: NatsServer | None, server: StreamingServer, stack: contextlib.AsyncExitStack) -> None:
        options = self.options.monitoring
        if options.problem:
            raise NatsStartError(options.problem)
        if not options.port:
            return
        from broker.monitoring.monitoring_server import MonitoringError, MonitoringServer

        monitoring = self.monitoring = MonitoringServer(nats, server, options.base_path, streams=self.streams)
        try:
            await monitoring.start(options.host, options.port, self.options.nats.tls if options.https else None)
        except MonitoringError as error:
            raise NatsStartError(str(error)) from error
        stack.push_async_callback(monitoring.stop)
        assert monitoring.loading is not None
        monitoring.loading.add_done_callback(lambda _: gc.freeze())
