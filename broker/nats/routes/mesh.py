"""All routes of a server: connections, interest, and discovery.

Facts: high-availability.md sections R.2 to R.6. A message from a client here goes to every server with a subscriber,
and there to clients only, so every server needs a route to every other one. Each server announces newcomers to the
others.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import ssl
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.listening import address, open_sockets, unspecified
from broker.log import NATS
from broker.nats import tls
from broker.nats.nats_options import parse_route
from broker.nats.remote_interest import RemoteInterestTable
from broker.nats.routes import wire
from broker.nats.routes.link import OPEN, Route
from stantools.errors import UsageError
from stantools.nats.interest import Interest
from stantools.nats.login import NatsAddress

if TYPE_CHECKING:
    from broker.nats.fair_scheduler import FairScheduler, Mailbox
    from broker.nats.nats_options import ClusterOptions, NatsOptions
    from broker.nats.remote_interest import RemoteServer
    from broker.nats.router import Router
    from broker.nats.subscriptions import Subscriptions

#: Seconds between two attempts to connect, partly random, so that two servers do not collide every time.
_RETRY: Final = 1.0
#: Attempts between two lines of the log.
_REPORT: Final = 3600
#: Seconds for the other end to close one of two connections between the same servers.
_DUPLICATE_GRACE: Final = 1.0
#: Lost subscriptions of a server above which the cache of subjects is cleared at once.
_MAX_REMOVALS: Final = 1024
#: Our version of the route protocol.
_PROTOCOL: Final = 2


class MeshHost(Protocol):
    options: NatsOptions
    id: str
    name: str
    version: str
    router: Router
    subscriptions: Subscriptions
    turns: FairScheduler
    mailbox: Mailbox

    @property
    def port(self) -> int: ...

    @property
    def has_undelivered(self) -> bool: ...

    def announce(self) -> None: ...


class RouteMesh:
    """The routes of a server.

    Raises `TLSError` for unusable TLS options, `UsageError` for a wrong URL.
    """

    def __init__(self, host: MeshHost, cluster: ClusterOptions) -> None:
        self.cluster = cluster
        self.turns = host.turns
        self.max_pending = host.options.max_pending
        self.name = cluster.name or secrets.token_hex(11)  #: name of the cluster
        self.links: dict[int, Route] = {}  #: all connections by number, also those in their handshake
        self.port = 0  #: listening port; 0 before `start`
        self._host = host
        self._dynamic = not cluster.name
        self._numbers = 0
        self._listeners: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._local_interest: dict[tuple[bytes, bytes], int] = {}
        #: Interest on other servers: link, subject, queue group.
        self._remote_interest: Interest[tuple[Route, bytes, bytes]] = Interest()
        #: Server id -> the connection for its messages.
        self._by_id: dict[str, Route] = {}
        #: URL -> id of the server there, if known.
        self._server_ids: dict[str, str] = {}
        #: URLs with a connection or attempts to connect.
        self._target_urls: set[str] = set()
        self._urls = [parse_route(url) for url in cluster.routes]
        self._server_context: ssl.SSLContext | None = None
        self._client_context: ssl.SSLContext | None = None
        if cluster.tls is not None:
            self._server_context = tls.server_context(cluster.tls)
            self._client_context = tls.certificate_context(cluster.tls, ssl.PROTOCOL_TLS_CLIENT)
            if cluster.tls.ca is None:
                self._client_context.load_default_certs()

    # Life

    async def start(self) -> None:
        """Listens, and starts to connect. Raises `OSError` with the log line if the port is not available."""
        NATS.info("Cluster name is %s", self.name)
        if self._dynamic:
            NATS.warning("Cluster name was dynamically generated, consider setting one")
        cluster = self.cluster
        try:
            sockets = open_sockets(cluster.host, max(cluster.port, 0))
        except OSError as problem:
            number = problem.errno or 0
            problem_text = os.strerror(number).lower() if number > 0 else str(problem)
            where = address(cluster.host, cluster.port)
            raise OSError(
                f"Error listening on router port: {cluster.port} - listen tcp {where}: bind: {problem_text}"
            ) from None
        loop = asyncio.get_running_loop()
        self._listeners = [
            await loop.create_server(
                partial(self._new_link, None, configured=False), sock=each, ssl=self._server_context
            )
            for each in sockets
        ]
        self.port = sockets[0].getsockname()[1]
        NATS.info("Listening for route connections on %s", address(cluster.host, self.port))
        for url in self._urls:
            self._spawn(url, configured=True)
        self._look_after()

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners:
            listener.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self.links.values()):
            link.close("Server Shutdown")

    def _look_after(self) -> None:
        now = time.monotonic_ns()
        for link in list(self.links.values()):
            link.look_after(now)
        self._timer = asyncio.get_running_loop().call_later(1.0, self._look_after)

    def _new_link(self, url: NatsAddress | None, *, configured: bool) -> Route:
        self._numbers += 1
        return Route(self._numbers, self, url, configured=configured)

    def connected(self, link: Route) -> None:
        self.links[link.number] = link

    def _spawn(self, url: NatsAddress, *, configured: bool) -> None:
        if self._stopped:
            return
        place = f"{url.host}:{url.port}"
        self._target_urls.add(place)
        task = asyncio.get_running_loop().create_task(self._connect(url, configured=configured))
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._target_urls.discard(place)

        task.add_done_callback(over)

    async def _connect(self, url: NatsAddress, *, configured: bool) -> None:
        """Keeps a connection to a configured URL, or makes one to a discovered URL."""
        loop = asyncio.get_running_loop()
        place = f"{url.host}:{url.port}"
        attempt = 0
        while not self._stopped:
            resident = self._server_ids.get(place)
            if resident == self._host.id:
                return
            if resident in self._by_id and not configured:
                return
            if resident not in self._by_id:
                attempt += 1
                try:
                    _, link = await loop.create_connection(
                        lambda: self._new_link(url, configured=configured),
                        url.host,
                        url.port,
                        ssl=self._client_context,
                        server_hostname=url.host if self._client_context is not None else None,
                    )
                except (OSError, ValueError) as problem:
                    if attempt == 1 or not attempt % _REPORT:
                        NATS.error("Error trying to connect to route (attempt %d): %s", attempt, problem)
                else:
                    await link.over.wait()
                    attempt = 0 if link.remote else attempt
                if not configured and attempt > self.cluster.connect_retries:
                    return
            await asyncio.sleep(_RETRY * random.uniform(0.9, 1.3))

    def leave(self) -> None:
        for link in self.links.values():
            if link.state is OPEN:
                link.send(wire.info(self.about(link) | {"ldm": True}))

    @property
    def routes(self) -> list[Route]:
        return list(self._by_id.values())

    @property
    def urls(self) -> list[str]:
        """The configured URLs, without users and passwords."""
        return [f"{url.host}:{url.port}" for url in self._urls]

    # Callbacks of links

    def about(self, link: Route) -> dict[str, Any]:
        host, cluster = self._host, self.cluster
        fields: dict[str, Any] = {
            "server_id": host.id,
            "server_name": host.name,
            "version": host.version,
            "proto": _PROTOCOL,
            "host": cluster.host,
            "port": self.port,
        }
        if not host.options.no_header_support:
            fields["headers"] = True
        if cluster.user:
            fields["auth_required"] = True
        if cluster.tls is not None:
            fields |= {"tls_required": True, "tls_verify": True}
        fields |= {"max_payload": host.options.max_payload, "cluster": self.name}
        if self._dynamic:
            fields["cluster_dynamic"] = True
        if cluster.advertise:
            fields["ip"] = f"nats-route://{cluster.advertise}/"
        if not cluster.no_advertise:
            # as a client reaches this server at the link's local address
            options, here = host.options, link.local_host
            client_host = here if unspecified(options.host) and here else options.host
            fields["connect_urls"] = [options.client_advertise or address(client_host, host.port)]
        return fields

    def credentials(self, link: Route) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "echo": True,
            "verbose": False,
            "pedantic": False,
            "tls_required": self.cluster.tls is not None,
            "headers": not self._host.options.no_header_support,
            "name": self._host.id,
            "cluster": self.name,
        }
        if self._dynamic:
            fields["cluster_dynamic"] = True
        url = link.url
        if url is not None and url.user:
            fields |= {"user": url.user, "pass": url.password}
        elif self.cluster.user:
            fields |= {"user": self.cluster.user, "pass": self.cluster.password}
        return fields

    def agrees(self, fields: Any) -> str:
        """Returns the reason why a server cannot be in this cluster; empty if it can. A generated name is replaced."""
        theirs = str(fields.get("cluster", ""))
        if theirs == self.name:
            return ""
        if self._dynamic and theirs and (not fields.get("cluster_dynamic") or theirs > self.name):
            self.name, self._dynamic = theirs, bool(fields.get("cluster_dynamic"))
            NATS.info("Cluster name updated to %s", theirs)
            return ""
        if fields.get("cluster_dynamic"):
            return ""  # the other end adopts our name
        return f'Rejecting connection, cluster name "{theirs}" does not match "{self.name}"'

    def introduced(self, link: Route) -> bool:
        """The other end has sent its CONNECT. Returns whether it is accepted."""
        other = link.remote_id
        if link.url is not None:
            self._server_ids[f"{link.url.host}:{link.url.port}"] = other
        if not other or other == self._host.id:
            link.close("Duplicate Route")
            return False
        name = str(link.remote.get("server_name", ""))
        if name and name in {self._host.name, *(str(way.remote.get("server_name")) for way in self._by_id.values()
                                                if way.remote_id != other)}:  # fmt: skip
            NATS.error("%s - Remote server has a duplicate name: %r", link, name)
            link.close("Duplicate Server Name")
            return False
        if other in self._by_id:
            # Both ends have connected at the same time. Either end may close one connection; otherwise this one does.
            asyncio.get_running_loop().call_later(_DUPLICATE_GRACE, self._close_duplicates, other)
        else:
            self._by_id[other] = link
            NATS.info("%s - Route connection established with %s", link, other)
            self._announce_server(link)
            self._host.announce()
        for (subject, queue), weight in self._local_interest.items():
            link.send(wire.interest_lines(subject, queue, weight))
        return True

    def _close_duplicates(self, other: str) -> None:
        """Closes surplus connections; only one of the two servers does so."""
        twins = [link for link in self.links.values() if link.state is OPEN and link.remote_id == other]
        if self._host.id < other:
            for link in twins:
                if link is not self._by_id.get(other):
                    link.close("Duplicate Route")

    def _announce_server(self, newcomer: Route) -> None:
        remote = {name: value for name, value in newcomer.remote.items() if name != "nonce"}
        if not remote.get("ip"):
            remote["ip"] = f"nats-route://{address(newcomer.host, int(remote.get('port') or 0))}/"
        for other, link in self._by_id.items():
            if other != newcomer.remote_id:
                link.send(wire.info(remote))

    def informed(self, link: Route, fields: Any) -> None:
        other = str(fields.get("server_id", ""))
        if other == link.remote_id:
            link.remote |= fields
            if fields.get("ldm"):
                link.remote["connect_urls"] = []
            self._host.announce()
            return
        if not other or other == self._host.id or other in self._by_id or not isinstance(fields.get("ip"), str):
            return
        try:
            url = parse_route(fields["ip"].rstrip("/"))
        except UsageError:
            return
        place = f"{url.host}:{url.port}"
        self._server_ids[place] = other
        if place not in self._target_urls:
            self._spawn(url, configured=False)

    @property
    def connect_urls(self) -> list[str]:
        if self.cluster.no_advertise:
            return []
        return [str(url) for link in self._by_id.values() for url in link.remote.get("connect_urls") or ()]

    def gone(self, link: Route) -> None:
        self.links.pop(link.number, None)
        other = link.remote_id
        if self._by_id.get(other) is not link:
            return
        del self._by_id[other]
        self._apply_interest(link, leave=True)
        for twin in self.links.values():
            if twin.state is OPEN and twin.remote_id == other:
                self._by_id[other] = twin
                self._apply_interest(twin)
                break
        if not self._stopped:
            self._host.announce()

    # Interest

    def interest_changed(self, link: Route, interest: wire.RemoteInterest) -> None:
        if interest.account != wire.ACCOUNT:
            return
        key = interest.subject, interest.queue
        known = link.wishes.get(key, 0)
        if interest.weight:
            link.wishes[key] = interest.weight
        else:
            link.wishes.pop(key, None)
        if self._by_id.get(link.remote_id) is link and known != interest.weight:
            if not known:
                self._remote_interest.insert(interest.subject, (link, *key), interest.queue)
            elif not interest.weight:
                self._remote_interest.remove(interest.subject, (link, *key), interest.queue)
            self._host.subscriptions.changed(interest.subject)

    def _apply_interest(self, link: Route, *, leave: bool = False) -> None:
        """Adds or removes the whole interest of a server."""
        change = self._remote_interest.remove if leave else self._remote_interest.insert
        many = len(link.wishes) > _MAX_REMOVALS
        for subject, queue in link.wishes:
            change(subject, (link, subject, queue), queue)
            if not many:
                self._host.subscriptions.changed(subject)
        if many:
            self._host.subscriptions.forget()

    def match(self, subject: bytes) -> RemoteInterestTable | None:
        """Returns the receivers of a subject on other servers; None if there are none."""
        found = self._remote_interest.match(subject)
        if not found.plain and not found.queues:
            return None
        groups: dict[bytes, dict[RemoteServer, int]] = {}
        for members in found.queues:
            for link, pattern, queue in members:
                group = groups.setdefault(queue, {})
                group[link] = group.get(link, 0) + link.wishes[pattern, queue]
        return RemoteInterestTable(
            tuple(dict.fromkeys(link for link, _, _ in found.plain)),
            {queue: tuple(weights.items()) for queue, weights in groups.items()},
        )

    def interest(self, subject: bytes, queue: bytes, change: int) -> None:
        key = subject, queue
        before = self._local_interest.get(key, 0)
        self._local_interest[key] = count = before + change
        if not count:
            del self._local_interest[key]
        if queue or not before or not count:
            line = wire.interest_lines(subject, queue, count)
            for link in self.links.values():
                if link.state is OPEN:
                    link.send(line)

    # Messages

    def arrived(self, link: Route, message: wire.RoutedMessage) -> None:
        if message.account == wire.ACCOUNT:
            self._host.router.arrive(
                message.subject, message.reply, message.payload, message.header_size, message.queues
            )

    def overloaded(self) -> bool:
        self._host.mailbox.drain()
        return self._host.has_undelivered
