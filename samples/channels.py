"""Publishes to a channel as clients of NATS Streaming do, and reads it as a stream, as clients of JetStream do.

stan-broker -c samples/broker/streams.conf
python samples/channels.py nats://localhost:4222
"""

from __future__ import annotations

import asyncio
import sys

import nats

from stantools.streaming.client import connect


async def main(url: str) -> None:
    """Publishes five deliveries to the channel `deliveries.new` and works them off as the stream `deliveries_new`."""
    async with await connect(url, cluster_id="shop", client_id="till") as till:
        for number in range(5):
            await till.publish("deliveries.new", b"delivery %d" % number)
    client = await nats.connect(url)
    js = client.jetstream()
    print("stream:", await js.find_stream_name_by_subject("deliveries.new"))
    worker = await js.pull_subscribe("deliveries.new", "worker")
    for message in await worker.fetch(5, timeout=10):
        print(message.metadata.sequence.stream, message.data.decode())
        await message.ack_sync()
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://localhost:4222"))
