"""Channels as streams: JetStream clients read the messages of NATS Streaming clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.log import NATS
from broker.stores.streams.channels import ChannelStream, KeptChannelStream
from broker.streams.api_errors import RequestError
from broker.streams.configuration import StreamConfig
from stantools.nats.stream_names import stream_name, subject_name

if TYPE_CHECKING:
    from broker.ports import Clock
    from broker.stores.interface import ChannelLog
    from broker.streams.server import StreamsServer
    from broker.streams.stream import Stream

#: beside the directory of streams
_DIRECTORY: Final = "channel-consumers"


class ChannelStreams:
    """Makes a stream of each channel that follows the channel; implements `broker.streaming.ports.Recipients`.

    Consumers of channels are kept beside `store_dir`, the directory of streams; with None, channels end with the
    process.
    """

    def __init__(self, server: StreamsServer, clock: Clock, store_dir: Path | None) -> None:
        self._server, self._clock = server, clock
        self._directory = store_dir / _DIRECTORY if store_dir is not None else None
        #: by channel; None if a stream is impossible
        self._streams: dict[bytes, Stream | None] = {}

    def changed(self, channel: ChannelLog) -> None:
        if channel.name not in self._streams:
            self._streams[channel.name] = self._made(channel)
        elif (stream := self._streams[channel.name]) is not None:
            self._server.changed(stream)

    def removed(self, channel: ChannelLog) -> None:
        stream = self._streams.pop(channel.name, None)
        if stream is not None:
            self._server.take_back(stream)

    def _made(self, channel: ChannelLog) -> Stream | None:
        """Makes the stream of a channel, with the names of a migration."""
        text = channel.name.decode(errors="surrogateescape")
        name, subject = stream_name(text), subject_name(text)
        store = (
            ChannelStream(channel, subject.encode())
            if self._directory is None
            else KeptChannelStream(channel, subject.encode(), self._directory / name)
        )
        config = StreamConfig(
            name,
            description=f"channel {channel.name.decode(errors='replace')}",
            subjects=(subject,),
            storage="memory" if self._directory is None else "file",
            discard="new",
            sealed=True,
            deny_delete=True,
            deny_purge=True,
            allow_direct=True,
        )
        try:
            return self._server.lend(config, store.contents.first_time or self._clock.wall(), store)
        except RequestError as error:
            NATS.warning("Channel %r is not a stream %r: %s", text, name, error.text)
            return None
