"""What asyncio-nats-streaming sees of a server: `scenarios.py URL CLUSTER SCENARIO`, the result as JSON on stdout.

Runs in an environment of its own, not in that of the tests.
"""

import asyncio
import contextlib
import json
import sys
import time

import shim  # noqa: F401
from nats.aio.client import Client as NatsClient
from stan.aio.client import Client as StanClient

URL, CLUSTER, SCENARIO = sys.argv[1:4]


@contextlib.asynccontextmanager
async def connected(client_id, **options):
    nc, sc = NatsClient(), StanClient()
    await nc.connect(URL, loop=asyncio.get_running_loop(), connect_timeout=5)
    try:
        await sc.connect(CLUSTER, client_id, nats=nc, connect_timeout=5, **options)
        try:
            yield sc
        finally:
            await sc.close()
    finally:
        await nc.close()


class Seen:
    """Gathers messages; `count(n)` waits until so many are there."""

    def __init__(self):
        self.messages = []
        self.changed = asyncio.Event()

    async def __call__(self, message):
        self.messages.append(message)
        self.changed.set()

    async def count(self, number, timeout=15):
        deadline = time.monotonic() + timeout
        while len(self.messages) < number:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{len(self.messages)} of {number} messages came")
            self.changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), min(left, 1))
        return self

    @property
    def sequences(self):
        return [message.sequence for message in self.messages]

    @property
    def texts(self):
        return [message.data.decode() for message in self.messages]


async def publish(sc, channel, texts):
    for text in texts:
        await sc.publish(channel, text.encode())


async def basic():
    async with connected("py-basic") as sc:
        await publish(sc, "basic", ["one", "two", "three"])
        seen = Seen()
        sub = await sc.subscribe("basic", start_at="first", cb=seen)
        await seen.count(3)
        await publish(sc, "basic", ["four"])
        await seen.count(4)
        await sub.unsubscribe()
        return {"sequences": seen.sequences, "texts": seen.texts}


async def publish_async():
    async with connected("py-async") as sc:
        acks = []
        done = asyncio.Event()

        async def acked(ack):
            acks.append([ack.guid, ack.error])
            if len(acks) == 500:
                done.set()

        for number in range(500):
            await sc.publish("async-python", b"%d" % number, ack_handler=acked)
        await asyncio.wait_for(done.wait(), 20)
        seen = Seen()
        await sc.subscribe("async-python", start_at="first", cb=seen)
        await seen.count(500)
        return {
            "errors": [error for _, error in acks if error],
            "guids": len({guid for guid, _ in acks}),
            "in_order": seen.texts == [str(n) for n in range(500)],
        }


async def starts():
    async with connected("py-starts") as sc:
        await publish(sc, "starts", [str(n) for n in range(1, 6)])
        result = {}
        for name, options, number in (
            ("first", {"start_at": "first"}, 5),
            ("last", {"start_at": "last_received"}, 1),
            ("sequence", {"start_at": "sequence", "sequence": 3}, 3),
            ("time", {"start_at": "time", "time": 3600}, 5),
        ):
            seen = Seen()
            sub = await sc.subscribe("starts", cb=seen, **options)
            await seen.count(number)
            result[name] = seen.sequences
            await sub.unsubscribe()
        new = Seen()
        await sc.subscribe("starts", cb=new)
        await publish(sc, "starts", ["6"])
        await new.count(1)
        result["new"] = new.sequences
        return result


async def redelivery():
    async with connected("py-redelivery") as sc:
        await publish(sc, "redelivery", ["a", "b", "c"])
        seen = Seen()
        await sc.subscribe("redelivery", start_at="first", manual_acks=True, ack_wait=1, max_inflight=2, cb=seen)
        await seen.count(4)
        first = [[m.sequence, m.proto.redelivered] for m in seen.messages[:4]]
        await sc.ack(seen.messages[0])
        await seen.count(5)
        after = seen.sequences[4]
        return {"first": first, "after": after}


async def durable():
    result = {}
    async with connected("py-durable") as sc:
        await publish(sc, "durable", ["a", "b"])
        seen = Seen()
        sub = await sc.subscribe("durable", durable_name="d", start_at="first", cb=seen)
        await seen.count(2)
        await asyncio.sleep(0.1)
        await sub.close()
        await publish(sc, "durable", ["c", "d"])
        result["before"] = seen.sequences
    async with connected("py-durable") as sc:
        seen = Seen()
        sub = await sc.subscribe("durable", durable_name="d", start_at="first", cb=seen)
        await seen.count(2)
        result["resumed"] = seen.sequences
        await asyncio.sleep(0.1)
        await sub.unsubscribe()
        again = Seen()
        await sc.subscribe("durable", durable_name="d", start_at="first", cb=again)
        await again.count(4)
        result["anew"] = again.sequences
    return result


async def queue():
    async with connected("py-queue-1") as one, connected("py-queue-2") as two:
        left, right = Seen(), Seen()
        await one.subscribe("queue", queue="workers", cb=left)
        await two.subscribe("queue", queue="workers", cb=right)
        await publish(one, "queue", [str(n) for n in range(20)])
        deadline = time.monotonic() + 60
        while len(left.messages) + len(right.messages) < 20 and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return {"left": left.sequences, "right": right.sequences}


async def duplicate():
    async with connected("py-twin"):
        try:
            async with connected("py-twin"):
                return {"error": None}
        except Exception as problem:
            return {"error": str(problem)}


async def takeover():
    """Publishes as long as its input is open, whoever serves it meanwhile, and waits for what was acknowledged."""
    async with connected("py-takeover") as sc:
        seen = Seen()

        async def take(message):
            await seen(message)
            await sc.ack(message)

        await sc.subscribe("takeover", durable_name="d", manual_acks=True, ack_wait=1, cb=take)
        loop = asyncio.get_running_loop()
        ended = loop.run_in_executor(None, sys.stdin.read)
        acked, tries = [], 0
        while not ended.done():
            tries += 1
            with contextlib.suppress(Exception):
                await sc.publish("takeover", b"%d" % tries, ack_wait=1)
                acked.append(str(tries))
                if len(acked) == 1:
                    print("connected", flush=True)
        deadline = time.monotonic() + 30
        while not set(acked) <= set(seen.texts) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        first = dict(zip(seen.sequences, seen.texts, strict=True))
        return {"acked": acked, "first": list(first.items()), "tries": tries}


async def lost():
    """Waits for a server that forgets its clients: the callback has to be called."""
    nc, sc = NatsClient(), StanClient()
    gone = asyncio.get_running_loop().create_future()

    async def connection_lost(problem):
        gone.set_result(str(problem))

    await nc.connect(
        URL, loop=asyncio.get_running_loop(), connect_timeout=5, max_reconnect_attempts=100, reconnect_time_wait=0.1
    )
    await sc.connect(CLUSTER, "py-lost", nats=nc, ping_interval=1, ping_max_out=20, conn_lost_cb=connection_lost)
    print("connected", flush=True)
    error = await asyncio.wait_for(gone, 40)
    return {"error": error}


async def main():
    result = await globals()[SCENARIO]()
    print(json.dumps(result))


asyncio.run(main())
