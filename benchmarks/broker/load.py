"""Raw load for a streaming server, a JetStream server or a NATS server: publishes, deliveries, one at a time.

    python benchmarks/broker/load.py publish    --port 4222 --count 1000000 --size 128 --connections 4
    python benchmarks/broker/load.py sync       --port 4222 --count 20000
    python benchmarks/broker/load.py subscribe  --port 4222 --channel load --count 1000000 --in-flight 16384
    python benchmarks/broker/load.py subscribe  … --connections 4        (fan-out: each gets every message)
    python benchmarks/broker/load.py durables  …  --connections 500     (each on its own channel, one message at a time)
    python benchmarks/broker/load.py jetstream  --port 4223 --count 1000000 --storage file
    python benchmarks/broker/load.py core       --port 4222 --count 2000000 --connections 1

Messages are encoded before the clock starts. With `--pid` the processor time of the server is measured. Every answer is
looked at: an error ends the run. The result is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import selectors
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rawclient import RawClient

from stantools.format.fieldscan import encode_varint, varint
from stantools.format.proto.protocol_pb2 import Ack, PubAck, PubMsg
from stantools.nats import frames as columns
from stantools.nats.frames import Frames

_TICK = os.sysconf("SC_CLK_TCK")
#: Messages that are encoded, and sent again and again.
_PREPARED = 4096
#: Bytes handed to a socket at a time, about.
_PIECE = 1 << 17
_SILENCE = 30.0
_ACKS, _MESSAGES = 3, 4
_FIRST = 4
_ACK_INBOX = b"?" * 29


@dataclass
class Result:
    """What a run came to.

    Attributes:
        mode: Which one.
        messages: How many, of all connections.
        seconds: From the first byte to the last answer.
        rate: Messages a second.
        cpu: Microseconds of the server's processor time for a message; None where it is not known.
        client_cpu: The same of this process.
        p50: Microseconds until the answer, in the middle; only one at a time.
        p99: The same, of the slowest hundredth.
    """

    mode: str
    messages: int
    seconds: float
    rate: float
    cpu: float | None
    client_cpu: float
    p50: float | None = None
    p99: float | None = None


class Clock:
    """Time and processor time of a run."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._server = self._processor()
        self._client = time.process_time()
        self._start = time.perf_counter()

    def _processor(self) -> float | None:
        if self._pid is None:
            return None
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def result(self, mode: str, count: int, times: Sequence[int] = ()) -> Result:
        """Ends the run."""
        seconds = time.perf_counter() - self._start
        client = (time.process_time() - self._client) / count * 1e6
        server = self._processor()
        cpu = None if server is None or self._server is None else (server - self._server) / count * 1e6
        result = Result(mode, count, seconds, count / seconds, cpu, client)
        if times:
            result.p50, result.p99 = (float(np.percentile(times, p)) / 1000 for p in (50, 99))
        return result


class Prepared:
    """Encoded frames in one buffer, to be sent round and round."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._data = memoryview(b"".join(frames))
        self._ends = [0, *np.cumsum([len(frame) for frame in frames]).tolist()]
        self._next = 0
        self._most = max(1, _PIECE * len(frames) // len(self._data))

    def take(self, most: int) -> tuple[memoryview, int]:
        """Returns the next frames, at most so many, and how many they are."""
        begin = self._next
        end = min(begin + most, begin + self._most, len(self._ends) - 1)
        self._next = end % (len(self._ends) - 1)
        return self._data[self._ends[begin] : self._ends[end]], end - begin


class Publisher:
    """Publishes on a connection, with a window of messages that are not acknowledged yet."""

    def __init__(self, client: RawClient, prepared: Prepared, count: int, window: int, good: AckCheck) -> None:
        self.client = client
        self._prepared = prepared
        self._left = count
        self._window = window
        self._waiting = 0
        self._good = good
        #: Waiting for room for that many lets both sides work on many at once.
        self._least = max(1, window // 4)
        client.subscribe(client.inbox + b".A", _ACKS, self._take)
        client.flush()

    def _take(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        self._good(buffer, frames, begin, end)
        self._waiting -= end - begin
        if self._waiting < 0:
            raise RuntimeError("more acks than messages")

    @property
    def done(self) -> bool:
        """Whether all is sent and acknowledged."""
        return not self._left and not self._waiting

    def work(self) -> None:
        """Sends what may be sent."""
        if self.client.writing:
            self.client.write()
        while self._left and not self.client.writing:
            room = min(self._window - self._waiting, self._left)
            if room < min(self._least, self._left):
                return
            data, count = self._prepared.take(room)
            self._left -= count
            self._waiting += count
            self.client.put(data)


AckCheck = Callable[[bytearray, Frames, int, int], None]


def check_pub_acks(size: int) -> AckCheck:
    """Acks of a streaming server for guids that make them so many bytes long: any other length has an error."""

    def check(buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        sizes = frames[begin:end, columns.PAYLOAD_SIZE]
        if not (sizes == size).all():
            row = begin + int((sizes != size).argmax())
            at, length = frames[row, columns.PAYLOAD : columns.PAYLOAD_SIZE + 1].tolist()
            raise RuntimeError(f"error ack: {PubAck.FromString(bytes(buffer[at : at + length]))}")

    return check


def check_jetstream_acks(buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
    """Acks of a JetStream server: an error is named so."""
    first = int(frames[begin, columns.PAYLOAD])
    last = int(frames[end - 1, columns.PAYLOAD]) + int(frames[end - 1, columns.PAYLOAD_SIZE])
    at = buffer.find(b'"error"', first, last)
    if at >= 0 or frames[begin:end, columns.HEADER_SIZE].any():
        raise RuntimeError(f"error ack: {bytes(buffer[max(first, at - 50) : at + 200])!r}")


def run(workers: Sequence[Any]) -> None:
    """Lets workers work until all are done."""
    selector = selectors.DefaultSelector()
    for worker in workers:
        worker.client.socket.setblocking(False)
        selector.register(worker.client.socket, selectors.EVENT_READ, worker)
        worker.work()
    left = {id(worker) for worker in workers if not worker.done}
    for worker in workers:
        _watch(selector, worker)
    while left:
        events = selector.select(_SILENCE)
        if not events:
            raise RuntimeError(f"nothing came for {_SILENCE} s")
        for key, mask in events:
            worker = key.data
            if mask & selectors.EVENT_READ:
                worker.client.receive()
            worker.work()
            if worker.done:
                left.discard(id(worker))
            _watch(selector, worker)
    for worker in workers:
        worker.client.socket.setblocking(True)
    selector.close()


def _watch(selector: selectors.BaseSelector, worker: Any) -> None:
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.client.writing else 0)
    if selector.get_key(worker.client.socket).events != wanted:
        selector.modify(worker.client.socket, wanted, worker)


def publish(options: argparse.Namespace) -> Result:
    """Publishes to a streaming server; `sync` and `durables` with one message in flight on each connection."""
    one = options.mode == "sync"
    durables = options.mode == "durables"
    workers: list[Any] = []
    check = check_pub_acks(24)
    for number in range(options.connections):
        client = RawClient(options.host, options.port)
        identity = f"load-{number}-{secrets.token_hex(4)}".encode()
        connection = secrets.token_hex(11).encode()
        prefix = client.connect(options.cluster.encode(), identity, connection)
        channels = [
            f"{options.channel}.{i}" if options.channels > 1 else options.channel for i in range(options.channels)
        ]
        if durables:
            channels = [f"{options.channel}.{number}"]
        frames = []
        for i in range(16 if durables else max(_PREPARED, options.channels)):
            channel = channels[i % len(channels)].encode()
            message = PubMsg(client_id=identity, guid=_guid(i), subject=channel, conn_id=connection)
            message.data = document(options.size, i)
            payload = message.SerializeToString()
            subject = prefix + b"." + channel
            frames.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, client.inbox + b".A", len(payload), payload))
        count = options.count // options.connections
        if one:
            workers.append(OneAtATime(client, frames, count, check))
        elif durables:
            workers.append(Conversation(client, channels[0].encode(), frames, count, check))
        else:
            workers.append(Publisher(client, Prepared(frames), count, options.window, check))
    clock = Clock(options.pid)
    if one:
        run_one_at_a_time(workers)
    else:
        run(workers)
    times = [t for worker in workers for t in worker.times] if one or durables else []
    result = clock.result(options.mode, options.count // options.connections * options.connections, times)
    for worker in workers:
        worker.client.disconnect()
        worker.client.close()
    return result


def _guid(number: int) -> bytes:
    return b"%022d" % number


def document(size: int, seed: int) -> bytes:
    """Text that looks like JSON, different for each message."""
    text = b'{"id":%d,"value":"%b"}' % (seed, secrets.token_hex(size // 2 + 1).encode())
    return text[:size]


class OneAtATime:
    """Publishes the next message when the one before is acknowledged.

    The usual answer is told by its bytes: both sides share the machine, and what is measured is the other one.
    """

    def __init__(self, client: RawClient, frames: Sequence[bytes], count: int, good: AckCheck) -> None:
        self.client = client
        self._frames = [memoryview(frame) for frame in frames]
        self._left = count
        self._sent = 0
        self._free = True
        self._good = good
        self._answers = [
            b"MSG %b %d 24\r\n%b\r\n" % (client.inbox + b".A", _ACKS, PubAck(guid=_guid(i)).SerializeToString())
            for i in range(len(frames))
        ]
        self.times: list[int] = []
        client.subscribe(client.inbox + b".A", _ACKS, self._take)
        client.flush()

    def _take(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        self._good(buffer, frames, begin, end)
        self._answered()

    def _answered(self) -> None:
        self.times.append(time.perf_counter_ns() - self._sent)
        self._free = True

    def receive(self) -> None:
        """Takes the acknowledgement."""
        if self.client.receive_only(self._answers[self._left % len(self._frames)]):
            self._answered()

    @property
    def done(self) -> bool:
        """Whether all is sent and acknowledged."""
        return not self._left and self._free

    def work(self) -> None:
        """Sends the next."""
        if self._free and self._left:
            self._free = False
            self._left -= 1
            self._sent = time.perf_counter_ns()
            self.client.socket.sendall(self._frames[self._left % len(self._frames)])


def run_one_at_a_time(workers: Sequence[OneAtATime]) -> None:
    """Lets them work until all are done."""
    poll = select.poll()
    by_descriptor = {worker.client.socket.fileno(): worker for worker in workers}
    for descriptor, worker in by_descriptor.items():
        poll.register(descriptor, select.POLLIN)
        worker.work()
    left = len(workers)
    while left:
        events = poll.poll(_SILENCE * 1000)
        if not events:
            raise RuntimeError(f"nothing came for {_SILENCE} s")
        for descriptor, _ in events:
            worker = by_descriptor[descriptor]
            if worker.done:
                worker.client.receive()
                continue
            worker.receive()
            worker.work()
            left -= worker.done


def jetstream(options: argparse.Namespace) -> Result:
    """Publishes to a stream of a JetStream server."""
    workers: list[Any] = []
    for number in range(options.connections):
        client = RawClient(options.host, options.port)
        if number == 0:
            stream = f"LOAD-{secrets.token_hex(4)}"
            subject = f"{options.channel}.{secrets.token_hex(4)}"
            config = {"name": stream, "subjects": [subject], "storage": options.storage}
            config["num_replicas"] = options.replicas
            client.request_json(f"$JS.API.STREAM.CREATE.{stream}", config)
        frames = []
        for i in range(_PREPARED):
            data = document(options.size, i)
            frames.append(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), client.inbox + b".A", len(data), data))
        count = options.count // options.connections
        workers.append(Publisher(client, Prepared(frames), count, options.window, check_jetstream_acks))
    clock = Clock(options.pid)
    run(workers)
    result = clock.result(options.mode, options.count // options.connections * options.connections)
    workers[0].client.request_json(f"$JS.API.STREAM.DELETE.{stream}", {})
    for worker in workers:
        worker.client.close()
    return result


class Subscriber:
    """Takes what is delivered from the first message on, in order, and acknowledges each."""

    def __init__(self, client: RawClient, channel: bytes, count: int, in_flight: int) -> None:
        self.client = client
        self._channel = channel
        self._count = count
        self._in_flight = in_flight
        self._seen = self._acked = 0
        # Where acks go is known only when messages are on their way already.
        field = Ack(subject=channel).SerializeToString() + b"\x10"
        frames = []
        for sequence in range(1, count + 1):
            payload = field + encode_varint(sequence)
            frames.append(b"PUB %b %d\r\n%b\r\n" % (_ACK_INBOX, len(payload), payload))
        self._sizes = np.array([len(frame) for frame in frames])
        self._ends = [0, *np.cumsum(self._sizes).tolist()]
        self._acks = bytearray(b"".join(frames))
        client.subscribe(client.inbox + b".M", _MESSAGES, self._take)
        client.flush()

    def begin(self) -> None:
        """Subscribes."""
        inbox = self.client.stream_subscribe(self._channel, self._in_flight, _FIRST)
        if len(inbox) != len(_ACK_INBOX):
            raise RuntimeError(f"{inbox!r} is no ack inbox as we know it")
        data = np.frombuffer(self._acks, np.uint8)
        for size in np.unique(self._sizes).tolist():
            # Sequences rise, so those of one size lie together.
            first, count = int(self._sizes.searchsorted(size)), int((self._sizes == size).sum())
            rows = data[self._ends[first] : self._ends[first + count]].reshape(count, size)
            rows[:, 4 : 4 + len(inbox)] = np.frombuffer(inbox, np.uint8)

    def _take(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        first = int(frames[begin, columns.PAYLOAD])
        sequence, _ = varint(bytes(buffer[first + 1 : first + 12]), 0)
        if buffer[first] != 0x08 or sequence != self._seen + 1:
            raise RuntimeError(f"message {sequence} came where {self._seen + 1} was due")
        self._seen += end - begin

    @property
    def done(self) -> bool:
        """Whether all have come and are acknowledged."""
        return self._acked >= self._count and not self.client.writing

    def work(self) -> None:
        """Acknowledges what has come."""
        if self.client.writing:
            self.client.write()
        seen = min(self._seen, self._count)
        if not self.client.writing and self._acked < seen:
            data = memoryview(self._acks)[self._ends[self._acked] : self._ends[seen]]
            self._acked = seen
            self.client.put(data)


def subscribe(options: argparse.Namespace) -> Result:
    """Takes the stored messages of a channel; with several connections each takes all of them."""
    workers = []
    for number in range(options.connections):
        client = RawClient(options.host, options.port)
        identity = f"sub-{number}-{secrets.token_hex(4)}".encode()
        client.connect(options.cluster.encode(), identity, secrets.token_hex(11).encode())
        workers.append(Subscriber(client, options.channel.encode(), options.count, options.in_flight))
    clock = Clock(options.pid)
    for worker in workers:
        worker.begin()
    run(workers)
    result = clock.result(options.mode, options.count * options.connections)
    for worker in workers:
        worker.client.disconnect()
        worker.client.close()
    return result


class Conversation:
    """Publishes to a channel where it has a durable; the next message when that is stored, delivered and acked."""

    def __init__(self, client: RawClient, channel: bytes, frames: Sequence[bytes], count: int, good: AckCheck) -> None:
        self.client = client
        self._frames = [memoryview(frame) for frame in frames]
        self._left = count
        self._good = good
        self._expected = self._sent = 0
        self._field = Ack(subject=channel).SerializeToString() + b"\x10"
        self.times: list[int] = []
        client.subscribe(client.inbox + b".A", _ACKS, self._take_ack)
        client.subscribe(client.inbox + b".M", _MESSAGES, self._take_message)
        self._acks_to = client.stream_subscribe(channel, 64, _FIRST, b"durable")
        client.flush()

    def _take_ack(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        self._good(buffer, frames, begin, end)
        self.times.append(time.perf_counter_ns() - self._sent)
        self._expected -= end - begin

    def _take_message(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        first = int(frames[begin, columns.PAYLOAD])
        sequence, _ = varint(bytes(buffer[first + 1 : first + 12]), 0)
        payload = self._field + encode_varint(sequence)
        self.client.put(memoryview(b"PUB %b %d\r\n%b\r\n" % (self._acks_to, len(payload), payload)))
        self._expected -= end - begin

    @property
    def done(self) -> bool:
        """Whether all is sent, acknowledged and delivered."""
        return not self._left and not self._expected

    def work(self) -> None:
        """Sends the next."""
        if self.client.writing:
            self.client.write()
        elif self._left and not self._expected:
            self._left -= 1
            self._expected = 2
            self._sent = time.perf_counter_ns()
            self.client.put(self._frames[self._left % len(self._frames)])


class Counter:
    """Counts what is delivered by plain NATS."""

    def __init__(self, client: RawClient, subject: bytes, count: int) -> None:
        self.client = client
        self._left = count
        client.subscribe(subject, _MESSAGES, self._take)
        client.flush()

    def _take(self, buffer: bytearray, frames: Frames, begin: int, end: int) -> None:
        self._left -= end - begin

    @property
    def done(self) -> bool:
        """Whether all have come."""
        return self._left <= 0

    def work(self) -> None:
        """There is nothing to send."""


class Sender:
    """Publishes without waiting for anything, a PING behind the last one."""

    def __init__(self, client: RawClient, prepared: Prepared, count: int) -> None:
        self.client = client
        self._prepared = prepared
        self._left = count
        self._last = False

    @property
    def done(self) -> bool:
        """Whether the server has taken all."""
        return self._last and not self.client.writing and self.client._pongs >= 2

    def work(self) -> None:
        """Sends more."""
        if self.client.writing:
            self.client.write()
        while not self.client.writing and not self._last:
            if self._left:
                data, count = self._prepared.take(self._left)
                self._left -= count
            else:
                data, self._last = memoryview(b"PING\r\n"), True
            self.client.put(data)


def core(options: argparse.Namespace) -> Result:
    """Publishes by plain NATS from one connection to subscribers on others (0: to none)."""
    subject = f"{options.channel}.{secrets.token_hex(4)}".encode()
    workers: list[Any] = [
        Counter(RawClient(options.host, options.port), subject, options.count) for _ in range(options.connections)
    ]
    data = [document(options.size, i) for i in range(_PREPARED)]
    frames = [b"PUB %b %d\r\n%b\r\n" % (subject, len(piece), piece) for piece in data]
    workers.append(Sender(RawClient(options.host, options.port), Prepared(frames), options.count))
    clock = Clock(options.pid)
    run(workers)
    result = clock.result(options.mode, options.count * max(1, options.connections))
    for worker in workers:
        worker.client.close()
    return result


MODES: dict[str, Callable[[argparse.Namespace], Result]] = {
    "publish": publish,
    "sync": publish,
    "durables": publish,
    "subscribe": subscribe,
    "jetstream": jetstream,
    "core": core,
}


def parse(arguments: Sequence[str], modes: Iterable[str], about: str | None) -> argparse.Namespace:
    """Reads the command line of a load generator.

    Args:
        arguments: The command line.
        modes: What it can do.
        about: What `--help` says.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=tuple(modes))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4222)
    parser.add_argument("--cluster", default="test-cluster", help="cluster id of the streaming server")
    parser.add_argument("--channel", default="load", help="channel or subject")
    parser.add_argument("--channels", type=int, default=1, help="publish to so many in turn")
    parser.add_argument("--count", type=int, default=100_000, help="messages, of all publishers together")
    parser.add_argument("--size", type=int, default=128, help="bytes of a message")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--window", type=int, default=16384, help="messages a connection has unacknowledged at most")
    parser.add_argument(
        "--in-flight", type=int, default=16384, help="messages a subscription has unacknowledged at most"
    )
    parser.add_argument("--storage", choices=("file", "memory"), default="file", help="of a JetStream stream")
    parser.add_argument("--replicas", type=int, default=1, help="of a JetStream stream")
    parser.add_argument("--pid", type=int, help="process of the server")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs once."""
    options = parse(sys.argv[1:], MODES, __doc__)
    print(json.dumps(asdict(MODES[options.mode](options))))


if __name__ == "__main__":
    main()
