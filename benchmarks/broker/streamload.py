"""Load for the streams of a JetStream server: publishes, stored messages pulled and pushed, key-value requests, rest.

    python benchmarks/broker/streamload.py publish --port 4222 --count 1000000 --connections 8
    python benchmarks/broker/streamload.py sync    --port 4222 --count 20000      (one at a time; put and get as well)
    python benchmarks/broker/streamload.py pull    --port 4222 --count 1000000    (stored messages; ordered as well)
    python benchmarks/broker/streamload.py rest    --port 4222 --count 1000       (so many streams with ten consumers)

Streams are in files; those that rest are in memory, where they are made at once. Options and results are those of
load.py. With `rest` the rate is that of the requests that made consumers, and `cpu` is microseconds of the server's
processor time for each second in which nothing happens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from load import (
    Clock,
    OneAtATime,
    Prepared,
    Publisher,
    Result,
    check_jetstream_acks,
    document,
    parse,
    run,
    run_one_at_a_time,
)
from rawclient import RawClient

from stantools.nats import encoding
from stantools.nats import frames as columns
from stantools.nats.frames import Frames

_PREPARED = 4096
_MESSAGES = 4
#: Messages of a request; two of them are under way.
_BATCH = 4096
_KEYS = 1000
_CONSUMERS = 10
_REST = 10.0
_SECOND = 1_000_000_000


class Asker(OneAtATime):
    """Sends the next request when the one before is answered."""

    def receive(self) -> None:
        """Takes the answer."""
        self.client.receive()


class Reader:
    """Takes all messages of a stream, in order.

    Args:
        client: A connection.
        stream: The stream.
        count: How many messages it has.
        ordered: As ordered consumers do; by requests otherwise.
    """

    def __init__(self, client: RawClient, stream: str, count: int, *, ordered: bool) -> None:
        self.client, self._stream, self._left, self._ordered = client, stream, count, ordered
        self._unasked = 0 if ordered else count
        self._under_way = 0
        self._to = client.inbox + b".M"
        client.subscribe(self._to, _MESSAGES, self._take)
        client.flush()

    def begin(self) -> None:
        """Makes the consumer."""
        config: dict[str, Any] = {"deliver_policy": "all", "ack_policy": "none", "mem_storage": True}
        if self._ordered:
            config |= {"deliver_subject": self._to.decode(), "flow_control": True, "idle_heartbeat": 5 * _SECOND}
        request = {"stream_name": self._stream, "config": config}
        made = self.client.request_json(f"$JS.API.CONSUMER.CREATE.{self._stream}", request)
        self._ask_at = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{made['name']}".encode()

    def _take(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        came = end - begin
        for row in frames[begin:end][frames[begin:end, columns.HEADER_SIZE] > 0].tolist():
            # Heartbeats, and questions of flow control, which are answered at once.
            came -= 1
            if row[columns.REPLY_SIZE]:
                to = bytes(buffer[row[columns.REPLY] : row[columns.REPLY] + row[columns.REPLY_SIZE]])
                self.client.socket.send(encoding.publish(to, b""))
        self._left -= came
        self._under_way -= came

    @property
    def done(self) -> bool:
        """Whether all have come."""
        if self._left < 0:
            raise RuntimeError("more messages than there are")
        return not self._left

    def work(self) -> None:
        """Asks for more."""
        if self.client.writing:
            self.client.write()
        while self._unasked and self._under_way <= _BATCH and not self.client.writing:
            batch = min(_BATCH, self._unasked)
            self._unasked -= batch
            self._under_way += batch
            self.client.put(memoryview(encoding.publish(self._ask_at, b'{"batch":%d}' % batch, self._to)))


def _check_direct(buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
    """Answers to direct gets have headers; those without a message begin with a status."""
    at, size = frames[begin, columns.PAYLOAD], frames[begin, columns.HEADER_SIZE]
    if not size or buffer[at + 8] != ord("\r"):
        raise RuntimeError(f"no message: {bytes(buffer[at : at + 200])!r}")


def _made(client: RawClient, name: str, subject: str, **config: object) -> str:
    """Makes a stream. Returns its name."""
    client.request_json(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [subject], **config})
    return name


def _publisher(client: RawClient, subject: str, count: int, options: argparse.Namespace) -> Publisher:
    data = [document(options.size, i) for i in range(_PREPARED)]
    frames = [encoding.publish(subject.encode(), each, client.inbox + b".A") for each in data]
    return Publisher(client, Prepared(frames), count, options.window, check_jetstream_acks)


def publish(options: argparse.Namespace, clients: Sequence[RawClient]) -> Result:
    """Publishes, many messages under way."""
    _made(clients[0], "LOAD", "load")
    count = options.count // len(clients)
    workers = [_publisher(client, "load", count, options) for client in clients]
    clock = Clock(options.pid)
    run(workers)
    return clock.result(options.mode, count * len(clients))


def one_at_a_time(options: argparse.Namespace, clients: Sequence[RawClient]) -> Result:
    """Publishes to a stream, or puts and gets keys, each when the one before is answered."""
    _made(clients[0], "LOAD", "load")
    bucket = {"max_msgs_per_subject": 1, "allow_direct": True, "allow_rollup_hdrs": True, "discard": "new"}
    _made(clients[0], "KV_b", "$KV.b.>", **bucket)
    keys = [b"$KV.b.%d" % i for i in range(_KEYS)]
    value = document(options.size, 0)
    subjects = {
        "sync": [b"load"],
        "put": keys,
        "get": [b"$JS.API.DIRECT.GET.KV_b." + key for key in keys],
    }[options.mode]
    check, body = (_check_direct, b"") if options.mode == "get" else (check_jetstream_acks, value)
    if options.mode == "get":
        filling = [encoding.publish(key, value, clients[0].inbox + b".A") for key in keys]
        run([Publisher(clients[0], Prepared(filling), _KEYS, options.window, check_jetstream_acks)])
    count = options.count // len(clients)
    workers = []
    for client in clients:
        frames = [encoding.publish(subject, body, client.inbox + b".A") for subject in subjects]
        workers.append(Asker(client, frames, count, check))
    clock = Clock(options.pid)
    run_one_at_a_time(workers)
    return clock.result(options.mode, count * len(clients), [t for worker in workers for t in worker.times])


def read(options: argparse.Namespace, clients: Sequence[RawClient]) -> Result:
    """Takes stored messages, each client all of them."""
    name = _made(clients[0], "LOAD", "load")
    count = options.count // len(clients)
    run([_publisher(clients[0], "load", count, options)])
    readers = [Reader(client, name, count, ordered=options.mode == "ordered") for client in clients]
    clock = Clock(options.pid)
    for reader in readers:
        reader.begin()
    run(readers)
    return clock.result(options.mode, count * len(clients))


def rest(options: argparse.Namespace, clients: Sequence[RawClient]) -> Result:
    """Makes many streams with consumers, and looks at the server while nothing happens."""
    [client] = clients
    clock = Clock(options.pid)
    for number in range(options.count):
        name = _made(client, f"S{number}", f"s.{number}", storage="memory")
        for consumer in (f"c{i}" for i in range(_CONSUMERS)):
            config = {"durable_name": consumer, "ack_policy": "explicit"}
            subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{name}.{consumer}"
            client.request_json(subject, {"stream_name": name, "config": config})
    made = clock.result(options.mode, options.count * _CONSUMERS)
    # What is still to be written when the last one is made does not belong to rest.
    time.sleep(_REST)
    clock = Clock(options.pid)
    time.sleep(_REST)
    made.cpu = clock.result(options.mode, round(_REST)).cpu
    return made


MODES: dict[str, Callable[[argparse.Namespace, Sequence[RawClient]], Result]] = {
    "publish": publish,
    **dict.fromkeys(("sync", "put", "get"), one_at_a_time),
    **dict.fromkeys(("pull", "ordered"), read),
    "rest": rest,
}


def main() -> None:
    """Runs once."""
    options = parse(sys.argv[1:], MODES, __doc__)
    clients = [RawClient(options.host, options.port) for _ in range(options.connections)]
    print(json.dumps(asdict(MODES[options.mode](options, clients))))
    for client in clients:
        client.close()


if __name__ == "__main__":
    main()
