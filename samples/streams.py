"""Works with streams: a work queue, a bucket of keys and values, an object store. Any JetStream server will do.

python samples/streams.py nats://localhost:4222
"""

from __future__ import annotations

import asyncio
import sys

import nats
from nats.js.api import RetentionPolicy


async def main(url: str) -> None:
    """Publishes ten orders and works them off, then keeps a value and a file."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"], retention=RetentionPolicy.WORK_QUEUE)
    for number in range(10):
        # A message that is sent twice is stored once.
        headers = {"Nats-Msg-Id": f"order-{number}"}
        await js.publish("orders.new", b"order %d" % number, headers=headers)
        await js.publish("orders.new", b"order %d" % number, headers=headers)
    worker = await js.pull_subscribe("orders.>", "worker")
    for message in await worker.fetch(10, timeout=10):
        print(message.metadata.sequence.stream, message.data.decode())
        await message.ack_sync()
    print("orders left:", (await js.stream_info("ORDERS")).state.messages)

    settings = await js.create_key_value(bucket="settings", history=3)
    await settings.put("color", b"red")
    await settings.put("color", b"blue")
    print("color:", [entry.value.decode() for entry in await settings.history("color") if entry.value])

    files = await js.create_object_store("files")
    await files.put("large", bytes(1_000_000))
    print("large:", len((await files.get("large")).data or b""), "bytes")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://localhost:4222"))
