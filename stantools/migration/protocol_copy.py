"""Channels of a running streaming server, copied through its protocol into a file store of our own.

For servers whose files are out of reach: a managed service, a SQL store without access, a lost machine. The copy is a
source like any other store; sequences, timestamps, replies and payloads are those that the server delivers.

    end      a subscription from the last message shows the last sequence; monitoring shows it as well
    read     a subscription from the first message that the copy lacks, up to that sequence
    gaps     the message after each gap must be the first that a subscription from inside the gap delivers

Messages that are lost on the way, on a broken connection, are thus never taken for a gap; a second run continues after
the last message of each channel. The protocol shows neither the names of channels nor the positions of durables
(streaming-protocol.md sections 12 and 13): the names come from the user or from monitoring.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stantools.errors import NotAStoreError, RefusedError, StoreUnreadableError, StoreUnwritableError
from stantools.format.crc import IEEE, Crc
from stantools.migration.journal import UNWATCHED, JournalObserver, StreamStage
from stantools.migration.plan.migration_plan import OmittedPart
from stantools.migration.protocol_source import ProtocolSource, named
from stantools.migration.tasks import in_parallel, run
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import connect as connect_nats
from stantools.nats.monitoring import STREAMING, Address, Endpoint
from stantools.notation import counted
from stantools.progress import Progress
from stantools.store.atomic import new_directory
from stantools.store.directory import open_datastore, subject_matches
from stantools.store.serverinfo import new_server_info, readable_server_info
from stantools.store.slicewriter import SliceWriter
from stantools.store.storewriter import StoreWriter
from stantools.streaming.client import Client, ClientOptions, Message, Start, SubscriptionOptions, connect
from stantools.streaming.errors import NoServerError, StreamingError

#: channels read at a time, and messages that the server may send before it waits for acknowledgements
_AT_ONCE = 8
_IN_FLIGHT = 4096
#: messages that are written together
_BATCH = 1024
#: seconds in which the server delivers a message that it has
_PATIENCE = 10.0
#: seconds after which a channel without a message counts as empty
_SILENCE = 2.0
#: channels of one answer of monitoring
_PAGE = 1024
_CHANNELS = f"{STREAMING}/channelsz"


@dataclass(frozen=True)
class FetchedChannel:
    name: str
    before: int  #: last sequence of the copy before this run
    last: int  #: last sequence now
    messages: int  #: messages that this run copied


class Monitoring:
    """Documents of the server's monitoring port."""

    def __init__(self, url: str) -> None:
        self._endpoint = Endpoint(Address.parse(url))

    def channels(self) -> list[str]:
        names: list[str] = []
        while True:
            page = self._endpoint.ask(_CHANNELS, limit=_PAGE, offset=len(names))
            names += [str(each) for each in page.get("names") or ()]
            if not page.get("names") or len(names) >= int(page.get("total", 0)):
                return names

    def durables(self, channel: str) -> Iterator[OmittedPart]:
        """Yields the durables of a channel, whose positions the copy cannot have."""
        for each in self._endpoint.ask(_CHANNELS, channel=channel, subs=1).get("subscriptions") or ():
            if each.get("is_durable") or each.get("durable_name"):
                durable, client = each.get("durable_name"), each.get("client_id")
                name = f"durable {durable}" if durable else f"queue group {each.get('queue_name')}"
                text = f"{name} of client {client!r}" if client else name
                text += f": last sent {each.get('last_sent', 0)}, {each.get('pending_count', 0)} not acknowledged; the "
                yield OmittedPart("durable" if durable else "queue group", channel, f"{text}server does not tell which")


#: What a copy lacks, in the plan of its migration.
LIMITS = (
    OmittedPart("durable", "", "the protocol does not show the positions of durables and queue groups: consumers need "
                "the files of the server; --from-monitor lists durables and groups"),
    OmittedPart("client", "", "client ids: the protocol does not show them"),
)  # fmt: skip


def channels_of(remote: ProtocolSource, patterns: Sequence[str]) -> list[str]:
    """Returns the names of the channels to copy."""
    if named(patterns) and not remote.monitor:
        return list(dict.fromkeys(patterns))
    present = Monitoring(remote.monitor).channels()
    chosen = [name for name in present if not patterns or any(subject_matches(each, name) for each in patterns)]
    if not chosen:
        raise StoreUnreadableError(
            f"the streaming server has no such channel; it has {counted(len(present), 'channel')}", "check --channel"
        )
    return chosen


def left_out(remote: ProtocolSource, channels: Collection[str]) -> list[OmittedPart]:
    """Returns what the copy of channels lacks."""
    if not remote.monitor:
        return list(LIMITS)
    monitoring = Monitoring(remote.monitor)
    return [part for name in channels for part in monitoring.durables(name)] + [LIMITS[1]]


def copy_channels(
    remote: ProtocolSource, channels: Sequence[str], options: ConnectOptions, watch: JournalObserver = UNWATCHED
) -> list[FetchedChannel]:
    """Copies channels into `remote.place`, a new store or the copy of an earlier run.

    `options` are those of the connection, without a server. Raises RefusedError if the directory is not a copy of this
    cluster, StreamingError if the server cannot be read.
    """

    async def main() -> list[FetchedChannel]:
        async with connect_nats(options) as connection:
            client_id = f"stantools-copy-{secrets.token_hex(4)}"
            settings = ClientOptions(timeout=options.timeout)
            try:
                connected = await connect(connection, remote.cluster_id, client_id, settings)
            except NoServerError as problem:
                remedy = "check --cluster-id, and that --from is the NATS server of the streaming server"
                raise NoServerError(problem.message, remedy) from problem
            async with connected as client:
                _open_copy(remote)
                copies = (_ChannelFetch(client, name, remote.place, watch) for name in channels)
                return await in_parallel(_ChannelFetch.run, list(copies), _AT_ONCE)

    return run(main())


def _open_copy(remote: ProtocolSource) -> None:
    place = remote.place
    if not place.exists():
        with new_directory(place) as content:
            store = StoreWriter(content, Crc(IEEE))
            store.write_server(new_server_info(remote.cluster_id))
            store.write_clients([])
        return
    try:
        info = readable_server_info(open_datastore(place, Crc(IEEE)))
    except NotAStoreError:
        info = None
    if info is None or info.cluster_id != remote.cluster_id.encode():
        raise RefusedError(f"{place}: exists, and is no copy of {remote.cluster_id}", "name another one with --copy")


class _ChannelFetch:
    """One channel in progress."""

    def __init__(self, client: Client, name: str, place: Path, watch: JournalObserver) -> None:
        self._client = client
        self._name = name
        self._directory = place / name
        self._watch = watch
        self._messages: list[Message] = []

    async def run(self) -> FetchedChannel:
        with await asyncio.to_thread(self._open) as writer:
            before = writer.last_sequence
            newest = await self._first_of(Start.last_received(), _SILENCE)
            last = newest.sequence if newest else before
            if last < before:
                raise RefusedError(
                    f"channel {self._name} goes up to {last}, its copy up to {before}: its sequences began again",
                    "remove the copy and run again, or name another one with --copy",
                )
            count = 0
            if last > before:
                with self._watch.stage(self._name, StreamStage.LOAD, last - before) as progress:
                    count = await self._read(writer, before, last, progress)
            return FetchedChannel(self._name, before, writer.last_sequence, count)

    def _open(self) -> SliceWriter:
        name, crc = os.fsencode(self._name), Crc(IEEE)
        if self._directory.exists():
            try:
                return SliceWriter.resume(self._directory, name, crc)
            except (StoreUnwritableError, StoreUnreadableError):
                # A killed run left a slice without its end; the server still has the messages.
                shutil.rmtree(self._directory)
        StoreWriter(self._directory.parent, crc).write_subs(name, [])
        return SliceWriter.resume(self._directory, name, crc)

    async def _read(self, writer: SliceWriter, before: int, last: int, progress: Progress) -> int:
        """Copies the messages in (before, last]; returns their number."""
        arrived = asyncio.Event()
        received: list[Message] = []

        def take(message: Message) -> None:
            received.append(message)
            arrived.set()

        start = Start.sequence(before + 1) if before else Start.first()
        subscription = await self._client.subscribe(
            self._name, take, SubscriptionOptions(start=start, max_in_flight=_IN_FLIGHT)
        )
        count, at = 0, before
        try:
            while at < last:
                try:
                    await asyncio.wait_for(arrived.wait(), _PATIENCE)
                except TimeoutError:
                    raise StreamingError(
                        f"channel {self._name}: no message after {at} came within {_PATIENCE:g} s; the last is {last}",
                        "run the same command again: it continues there",
                    ) from None
                arrived.clear()
                batch, received[:] = received[:], []
                for message in batch:
                    if at < message.sequence <= last:
                        if message.sequence > at + 1:
                            await self._check_gap(at + 1, message.sequence)
                        self._messages.append(message)
                        at = message.sequence
                        count += 1
                if len(self._messages) >= _BATCH or at >= last:
                    progress(len(self._messages))
                    await asyncio.to_thread(self._write, writer)
        finally:
            await subscription.unsubscribe()
        return count

    def _write(self, writer: SliceWriter) -> None:
        messages, self._messages = self._messages, []
        writer.append(
            [each.sequence for each in messages],
            [each.timestamp for each in messages],
            [each.reply.encode() for each in messages] if any(each.reply for each in messages) else None,
            [each.data for each in messages],
        )

    async def _check_gap(self, first: int, after: int) -> None:
        """Raises StreamingError if the server has messages from `first` to the one `after` the gap."""
        found = await self._first_of(Start.sequence(first), _PATIENCE)
        if found is None or found.sequence < after:
            lost = found.sequence if found else first
            raise StreamingError(
                f"channel {self._name}: message {lost} was lost on the way",
                "run the same command again: it continues there",
            )

    async def _first_of(self, start: Start, patience: float) -> Message | None:
        """Returns the first message from a position; None if none comes."""
        first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def take(message: Message) -> None:
            if not first.done():
                first.set_result(message)

        options = SubscriptionOptions(start=start, max_in_flight=1)
        subscription = await self._client.subscribe(self._name, take, options)
        try:
            return await asyncio.wait_for(first, patience)
        except TimeoutError:
            return None
        finally:
            await subscription.unsubscribe()
