"""How long an innocent client waits while another one does its worst: one attack on a NATS server.

    python benchmarks/broker/attack.py wildcards --port 4222

The innocent sends PING and waits for PONG, all the time, from before the attack until a while after the attacker has
got the answer to its last PING and has closed its connection. With `nothing` for the attack there is none: something
else goes on, until the standard input of this process is closed. The result is one line of JSON, times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from stantools.format.proto.protocol_pb2 import PubMsg
from stantools.format.proto.store_pb2 import ConnectRequest

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1,"headers":true}\r\n'
_PATIENCE = 120.0
_PAUSE = 0.001
#: Seconds that the innocent goes on alone, before and after.
CALM = 1.0


class Client:
    """A connection that sends bytes and throws away what it gets."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), _PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(_CONNECT)
        self.ping()

    def send(self, data: bytes) -> None:
        """Sends all of it, and reads meanwhile what comes."""
        view = memoryview(data)
        while view:
            readable, writable, _ = select.select([self.socket], [self.socket], [], _PATIENCE)
            if readable:
                self._receive()
            if writable:
                view = view[self.socket.send(view[: 1 << 16], socket.MSG_DONTWAIT) :]
            elif not readable:
                raise TimeoutError("the server reads no more")

    def _receive(self) -> bytes:
        part = self.socket.recv(1 << 20)
        if not part:
            raise ConnectionError("the server has closed the connection")
        return part

    def ping(self) -> None:
        """Waits until the server has handled everything.

        Raises:
            ConnectionError: The server has closed the connection.
        """
        self.socket.sendall(b"PING\r\n")
        tail = b""
        while b"PONG\r\n" not in tail:
            tail = tail[-5:] + self._receive()


def _publishes(subjects: Iterator[bytes]) -> bytes:
    return b"".join(b"PUB %b 1\r\nx\r\n" % subject for subject in subjects)


def wildcards(client: Client) -> None:
    """60,000 subjects that are remembered, then 50 patterns that may concern any of them."""
    client.send(_publishes(b"f.%d.x" % (i // 2) for i in range(120_000)))
    client.ping()
    client.send(b"".join(b"SUB f.*.q%d %d\r\n" % (i, i) for i in range(50)))
    client.ping()


def subscriptions(client: Client) -> None:
    """200,000 subscriptions, half of them ended by the client, the others with the connection."""
    client.send(b"".join(b"SUB s.%d.%d %d\r\n" % (i % 100, i, i) for i in range(200_000)))
    client.ping()
    client.send(b"".join(b"UNSUB %d\r\n" % i for i in range(100_000)))
    client.ping()


def subjects(client: Client) -> None:
    """Messages to 200,000 subjects."""
    client.send(_publishes(b"%d.many.subjects" % i for i in range(200_000)))
    client.ping()


def long_subjects(client: Client) -> None:
    """Messages to 20,000 subjects of 3.9 KB with 1,948 tokens, two to each."""
    client.send(_publishes(b"%05d" % (i // 2) + b".a" * 1947 for i in range(40_000)))
    client.ping()


def fan_out(client: Client) -> None:
    """A subject with 50,000 subscriptions, and 20 messages to it."""
    client.send(b"".join(b"SUB many %d\r\n" % i for i in range(50_000)))
    client.ping()
    client.send(_publishes(b"many" for _ in range(20)))
    client.ping()


def deep(client: Client) -> None:
    """65,536 patterns that nearly match, and 20 subjects to look for."""
    patterns = (b".".join(b"*" if i >> bit & 1 else b"a" for bit in range(16)) for i in range(65_536))
    client.send(b"".join(b"SUB %b.end %d\r\n" % (pattern, i) for i, pattern in enumerate(patterns)))
    client.ping()
    client.send(_publishes(b"a." * 16 + b"not%d" % i for i in range(20)))
    client.ping()


def requests(client: Client) -> None:
    """20,000 streaming clients connect at once."""
    frames = []
    for i in range(20_000):
        request = ConnectRequest(client_id=b"c%d" % i, heartbeat_inbox=b"_INBOX.h%d" % i, protocol=1, conn_id=b"%d" % i)
        payload = request.SerializeToString()
        frames.append(b"PUB _STAN.discover.test-cluster _INBOX.%d %d\r\n%b\r\n" % (i, len(payload), payload))
    client.send(b"".join(frames))
    client.ping()


def bad_messages(client: Client) -> None:
    """100,000 messages that the streaming server refuses one by one."""
    payload = PubMsg(client_id=b"nobody", guid=b"g", subject=b"a", data=b"x").SerializeToString()
    frame = b"PUB _STAN.pub.none.a _INBOX.a %d\r\n%b\r\n" % (len(payload), payload)
    client.send(frame * 100_000)
    client.ping()


ATTACKS: dict[str, Callable[[Client], None]] = {
    each.__name__: each
    for each in (wildcards, subscriptions, subjects, long_subjects, fan_out, deep, requests, bad_messages)
}


def longest_wait(port: int, attack: str) -> dict[str, float]:
    """Lets one client attack, and says how long another one waited: during the attack, and alone before it."""
    innocent = Client(port)
    alone = max(waits_until(innocent, time.perf_counter() + CALM))
    attacker = multiprocessing.get_context("fork").Process(target=_attack, args=(port, attack))
    attacker.start()
    waits = list(waits_until(innocent, 0, attacker))
    attacker.join()
    if attacker.exitcode:
        raise RuntimeError(f"the attack failed ({attacker.exitcode})")
    waits.sort()
    found = {
        "longest": waits[-1],
        "p99": waits[len(waits) * 99 // 100],
        "median": waits[len(waits) // 2],
        "alone": alone,
    }
    return {name: seconds * 1000 for name, seconds in found.items()}


def longest_wait_meanwhile(port: int) -> dict[str, float]:
    """Says how long the innocent waits at most (ms), from now to the end of the standard input."""
    innocent, longest = Client(port), 0.0
    while not select.select([sys.stdin], [], [], _PAUSE)[0]:
        begin = time.perf_counter()
        innocent.ping()
        longest = max(longest, time.perf_counter() - begin)
    return {"longest": longest * 1000}


def waits_until(innocent: Client, end: float, attacker: BaseProcess | None = None) -> Iterator[float]:
    """Yields how long (s) each PONG takes, until a time, or until a while after the attacker has gone."""
    now = 0.0
    while now < end or attacker is not None:
        begin = time.perf_counter()
        innocent.ping()
        now = time.perf_counter()
        yield now - begin
        if attacker is not None and not attacker.is_alive():
            # Its connection has yet to be cleared away.
            attacker, end = None, now + CALM
        time.sleep(_PAUSE)


def _attack(port: int, attack: str) -> None:
    client = Client(port)
    ATTACKS[attack](client)
    client.socket.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="how long an innocent client waits")
    parser.add_argument("attack", choices=[*ATTACKS, "nothing"])
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    nothing = given.attack == "nothing"
    print(json.dumps(longest_wait_meanwhile(given.port) if nothing else longest_wait(given.port, given.attack)))


if __name__ == "__main__":
    main()
