"""A process that fills a stream, to be killed: `python publisher.py URL STREAM COUNT [WINDOW]`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.stream_publish import publish_stream
from stantools.nats.connect_options import ConnectOptions
from stantools.nats.connection import connect
from stantools.nats.jetstream import JetStream
from stantools.nats.publishing.publish_run import PublishWindow
from tests.migration.publish.conftest import CONFIG, FakeSource, numbered


def long_source(count: int) -> FakeSource:
    """Begins late, lacks every seventh and some more, and ends early."""
    sequences = (n for n in range(1000, 1000 + count) if n % 7 and not 2000 < n < 2300)
    return FakeSource(numbered(*sequences, size=100), last=1000 + count + 50)


async def main(url: str, stream: str, count: int, window: int) -> None:
    async with connect(ConnectOptions(servers=(url,))) as connection:
        publishing = PublishOptions(window=PublishWindow(messages=window, chunk=max(window // 4, 1)))
        await publish_stream(JetStream(connection), stream, CONFIG, long_source(count), options=publishing, resume=True)


if __name__ == "__main__":
    address, name, number, size = sys.argv[1:]
    asyncio.run(main(address, name, int(number), int(size)))
