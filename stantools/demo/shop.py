"""A shop that uses NATS Streaming, for the demonstration and as an example: publishers, durables, queue groups.

    python -m stantools.demo.shop fill nats://localhost:4222      fills three channels, and leaves work undone
    python -m stantools.demo.shop go-on nats://localhost:4222     shows that the server knows every client's position

Any streaming server will do, the broker or the original. The cluster id is `shop`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable

from stantools.errors import StantoolsError
from stantools.streaming.client import Client, Message, Start, SubscriptionOptions, connect

CLUSTER_ID = "shop"
CHANNELS = ("audit.log", "orders", "telemetry.device-1")
#: Messages of each channel before and after `reports` disconnects.
FIRST, MORE = 1900, 100
#: Seconds that a subscription may take for the stored messages.
PATIENCE = 60


async def fill(url: str) -> None:
    """Publishes, subscribes, and leaves messages without an ack.

    The client `billing` does not close its connection, as if it had crashed: it stays registered.
    """
    shop = await connect(url, CLUSTER_ID, "shop")
    reports = await connect(url, CLUSTER_ID, "reports")
    billing = await connect(url, CLUSTER_ID, "billing")
    packers = [await connect(url, CLUSTER_ID, f"packer-{number}") for number in (1, 2)]

    await publish(shop, range(1, FIRST + 1))
    for channel in CHANNELS:
        await Reader(reports, channel, durable="reports", leave={FIRST - 1, FIRST}).read(FIRST)
    await reports.close()

    await publish(shop, range(FIRST + 1, FIRST + MORE + 1))
    await shop.close()
    last = FIRST + MORE
    for channel in CHANNELS:
        await Reader(billing, channel, durable="billing", leave={5, 7, last}).read(last)
    # Two members share the orders; a durable group stays when the last of them goes.
    group = [Reader(packer, "orders", durable="packing", queue="packers", leave={last}) for packer in packers]
    await asyncio.gather(*(member.read(last, group) for member in group))
    for packer in packers:
        await packer.close()
    say(f"{len(CHANNELS)} channels with {last} messages each; reports left early, billing crashes now")
    os._exit(0)


async def go_on(url: str) -> None:
    """Subscribes to the durable of `reports` on every channel and shows what it gets."""
    async with await connect(url, CLUSTER_ID, "reports") as reports:
        for channel in CHANNELS:
            # Pending messages come first, then new ones.
            reader = Reader(reports, channel, durable="reports")
            await reader.read_all()
            again = [message.sequence for message in reader.got if message.redelivered]
            new = [message.sequence for message in reader.got if not message.redelivered]
            shown = f"{len(again)} pending again {again}"
            shown += f", then {len(new)} new ones from {new[0]} to {new[-1]}" if new else ", nothing new"
            say(f"{channel}: {shown}")


async def publish(client: Client, numbers: Iterable[int]) -> None:
    """Publishes to all channels, many at a time, and waits for the acks."""
    for number in numbers:
        for channel in CHANNELS:
            body = {"channel": channel, "number": f"{number:06}", "note": "a" * 40}
            await client.publish_async(channel, json.dumps(body).encode())
    await client.settled()


class Reader:
    """Reads from a durable subscription and acknowledges.

    Args:
        client: The client that subscribes.
        channel: The channel.
        durable: Name under which the server remembers the position.
        queue: Group that shares the messages.
        leave: Sequences that get no ack.
    """

    def __init__(
        self, client: Client, channel: str, *, durable: str, queue: str = "", leave: Iterable[int] = ()
    ) -> None:
        self.client, self.channel, self.leave = client, channel, frozenset(leave)
        self.options = SubscriptionOptions(
            start=Start.first(), durable=durable, queue=queue, manual_acks=True, max_in_flight=100, ack_wait=300
        )
        self.got: list[Message] = []

    async def read(self, count: int, together: Iterable[Reader] = ()) -> None:
        """Reads until the members of a group have `count` messages together."""
        await self.client.subscribe(self.channel, self._handle, self.options)
        readers = tuple(together) or (self,)
        async with asyncio.timeout(PATIENCE):
            while sum(len(reader.got) for reader in readers) < count:
                await asyncio.sleep(0.01)

    async def read_all(self) -> None:
        """Reads until half a second passes without a message."""
        await self.read(1)
        seen = 0
        while len(self.got) > seen:
            seen = len(self.got)
            await asyncio.sleep(0.5)

    async def _handle(self, message: Message) -> None:
        self.got.append(message)
        if message.sequence not in self.leave:
            await message.ack()


def say(text: str) -> None:
    """Prints a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs what the command line asks for."""
    verbs = {"fill": fill, "go-on": go_on}
    if len(sys.argv) != 3 or sys.argv[1] not in verbs:
        sys.stderr.write(f"usage: python -m stantools.demo.shop {'|'.join(verbs)} URL\n")
        return 2
    try:
        asyncio.run(verbs[sys.argv[1]](sys.argv[2]))
    except (StantoolsError, TimeoutError) as problem:
        sys.stderr.write(f"shop: {problem or 'it takes too long'}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
