"""JetStream over a connection: `broker.stores.jetstream.jetstream_port.JetStreamPort`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.log import STREAMING
from broker.stores.interface import StorageError
from stantools.errors import StantoolsError
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import NatsConnection
from stantools.nats.jetstream import JetStream
from stantools.nats.readback import Readback

if TYPE_CHECKING:
    from broker.config.broker_options import ConnectionOptions
    from stantools.nats.client import ConnectFailure
    from stantools.nats.frames import Handler
    from stantools.nats.inbox import Received

#: oldest tested version
OLDEST: Final = (2, 9, 0)
#: seconds for an answer, which callers request again: a server that has just died, or a group without leader, sends
#: none
_TIMEOUT: Final = 2.0
#: seconds for a change of a stream, which is requested again as well
_CHANGE: Final = 10.0


class _LastingConnection(NatsConnection):
    """A connection with endless reconnects; logs its events."""

    def __init__(self, options: ConnectOptions, name: str) -> None:
        super().__init__(options, name)
        self.settings = replace(self.settings, attempts=None)
        self.lost_handlers: dict[bytes, Callable[[], None]] = {}  #: by prefix: called when the connection is lost

    def on_lost(self, reason: str) -> None:
        super().on_lost(reason)
        STREAMING.error('connection "%s" has been disconnected: %s', self.settings.name, reason)
        for lost in tuple(self.lost_handlers.values()):
            lost()

    def on_back(self) -> None:
        STREAMING.info('connection "%s" reconnected to NATS Server at "%s"', self.settings.name, self.server)

    def on_unreachable(self, failure: ConnectFailure) -> None:
        super().on_unreachable(failure)
        STREAMING.debug("connection %r: no connection to %s: %s", self.settings.name, failure.server, failure.problem)

    def on_refused(self, text: str) -> None:
        super().on_refused(text)
        STREAMING.error('connection "%s": %s', self.settings.name, text)


class JetStreamLink:
    """JetStream over a separate connection. `domain` is empty for none."""

    def __init__(self, options: ConnectionOptions, cluster_id: bytes, domain: str = "") -> None:
        tls = options.tls
        plain = not (options.nkey_seed_file or options.credentials or options.token)
        self._connection = _LastingConnection(
            ConnectOptions(
                servers=options.url_list,
                user=options.user or None if plain else None,
                password=options.password if plain and options.user else None,
                token=options.token or None,
                nkey=Path(options.nkey_seed_file) if options.nkey_seed_file else None,
                creds=Path(options.credentials) if options.credentials else None,
                tls_ca=tls.ca if tls else None,
                tls_cert=tls.cert if tls else None,
                tls_key=tls.key if tls else None,
                tls_insecure=tls.skip_verify if tls else False,
                tls_hostname=tls.server_name or None if tls else None,
                domain=domain or None,
                timeout=_TIMEOUT,
            ).checked(),
            f"_NSS-{cluster_id.decode(errors='replace')}-js",
        )
        self._js = JetStream(self._connection, change=_CHANGE)
        # A read makes a consumer, which may be assigned to a server that has just died; the next one gets another
        # server.
        self._reading = JetStream(self._connection, change=_TIMEOUT)
        self._sids: dict[bytes, int] = {}
        self.send: Final = self._connection.send
        self.create_stream = self._js.create_stream
        self.update_stream = self._js.update_stream
        self.purge_stream = self._js.purge_stream
        self.delete_message = self._js.delete_message
        self.stream_info = self._js.stream_info
        self.stream_names: Callable[[str], Any] = self._js.stream_names
        self.delete_stream: Callable[[str], Any] = self._js.delete_stream

    async def connect(self) -> None:
        """Connects and checks the server's version; raises StorageError."""
        try:
            await self._connection.open()
        except StantoolsError as problem:
            raise StorageError(f"JetStream: {problem.message}") from problem
        version = self._connection.version
        if version < OLDEST:
            text = self._connection.info.get("version")
            await self.close()
            raise StorageError(
                f"JetStream: the NATS server at {self._connection.server} is {text}, and has to be 2.9 or newer"
            )

    async def close(self) -> None:
        await self._connection.close()

    @property
    def max_payload(self) -> int:
        """Largest message with its headers, in bytes."""
        return self._connection.max_payload

    def listen(self, handler: Handler, lost: Callable[[], None]) -> bytes:
        """Subscribes to a new prefix and returns it."""
        prefix = self._connection.new_inbox() + b"."
        self._connection.lost_handlers[prefix] = lost
        self._sids[prefix] = self._connection.subscribe(prefix + b">", handler)
        return prefix

    def unlisten(self, prefix: bytes) -> None:
        if (sid := self._sids.pop(prefix, None)) is not None:
            self._connection.unsubscribe(sid)
            del self._connection.lost_handlers[prefix]

    async def read(self, name: str, state: Mapping[str, Any], after: int) -> AsyncIterator[Received]:
        """Yields the messages of a stream after a sequence."""
        if int(state["last_seq"]) <= after or not int(state["messages"]):
            return
        async for received in Readback(self._reading, name, dict(state), after=after).batches():
            yield received
