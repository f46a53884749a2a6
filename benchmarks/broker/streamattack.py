"""How long an innocent client waits while another one sends the most expensive requests about streams.

    python benchmarks/broker/streamattack.py filters --port 4222 [--monitoring 8222]

As `attack.py`, with the API of streams: each attack is prepared first, then the innocent sends its PINGs while the
attacker waits for the answers to its requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import re
import secrets
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from attack import CALM, Client, waits_until

from stantools.format.proto.protocol_pb2 import ConnectResponse, PubMsg
from stantools.format.proto.store_pb2 import ConnectRequest, SubscriptionRequest

_KEYS = 100_000
_HEAD = re.compile(rb"(H?)MSG (\S+) \S+ (?:(\S+) )??(?:(\d+) )?(\d+)\r\n")
_PATIENCE = 120.0


class Requester(Client):
    """A connection that gets answers."""

    def __init__(self, port: int, monitoring: int = 0) -> None:
        self._asked, self._bytes = 0, b""
        super().__init__(port)
        self.monitoring = monitoring
        self.streaming = ConnectResponse()
        self.inbox = b"_INBOX." + secrets.token_hex(8).encode()
        self.send(b"SUB %b.* 1\r\n" % self.inbox)
        self.ping()

    def _receive(self) -> bytes:
        part = super()._receive()
        self._bytes += part
        return part

    def message(self) -> tuple[bytes, bytes, bytes]:
        """Waits for a message. Returns its subject, that for the answer, and all its bytes."""
        while True:
            found = _HEAD.search(self._bytes)
            if found is not None and len(self._bytes) >= (end := found.end() + int(found[5]) + 2):
                body = self._bytes[found.end() : end - 2]
                self._bytes = self._bytes[end:]
                return found[2], found[3] or b"", body
            self._receive()

    def ask(self, subject: str, body: Any = b"", header: bytes = b"") -> bytes:
        """Sends a request; returns what answers it first."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._asked += 1
        reply = self.inbox + b".%d" % self._asked
        if header:
            sizes = b"%d %d" % (len(header), len(header) + len(data))
            self.send(b"HPUB %b %b %b\r\n%b%b\r\n" % (subject.encode(), reply, sizes, header, data))
        else:
            self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(data), data))
        while True:
            to, _, answer = self.message()
            if to == reply:
                return answer

    def api(self, call: str, body: Any = b"") -> dict[str, Any]:
        """Sends a request to the API; returns its answer."""
        found: dict[str, Any] = json.loads(self.ask(f"$JS.API.{call}", body))
        return found

    def create(self, name: str, **config: Any) -> None:
        """Makes a stream."""
        answer = self.api(f"STREAM.CREATE.{name}", {"name": name, "storage": "file", **config})
        if "error" in answer:
            raise RuntimeError(f"{name}: {answer['error']}")

    def fill(self, subject: str, count: int = _KEYS) -> None:
        """Publishes a message to each of many subjects."""
        for begin in range(0, count, 5000):
            named = (subject % {"i": i, "m": i % 7} for i in range(begin, min(begin + 5000, count)))
            self.send(b"".join(b"PUB %b 1\r\nx\r\n" % each.encode() for each in named))
        self.ping()
        self.api("INFO")


def keys(client: Requester) -> None:
    """100,000 keys."""
    client.create("KV", subjects=["kv.>"], max_msgs_per_subject=1, allow_direct=True, allow_rollup_hdrs=True)
    client.fill("kv.%(m)d.%(i)d")


def turned_keys(client: Requester) -> None:
    """100,000 keys whose first tokens are the ones that differ."""
    client.create("KV", subjects=["kv.>"], max_msgs_per_subject=1, allow_direct=True)
    client.fill("kv.%(i)d.%(m)d")


def nothing(client: Requester) -> None:
    """There is nothing to prepare."""


def _get(client: Requester, **wanted: Any) -> None:
    client.ask("$JS.API.DIRECT.GET.KV", wanted)


def _consumer(client: Requester, stream: str = "KV", **config: Any) -> dict[str, Any]:
    return client.api(
        f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": {"ack_policy": "explicit", **config}}
    )


def _patterns(count: int) -> list[str]:
    return [f"kv.*.{k}" for k in range(count)]


def thousand_streams(client: Requester) -> None:
    """1,000 streams in one write."""
    requests = []
    for i in range(1000):
        body = json.dumps({"name": f"T{i}", "subjects": [f"t{i}.>"], "storage": "memory"}).encode()
        requests.append(b"PUB $JS.API.STREAM.CREATE.T%d %b.x%d %d\r\n%b\r\n" % (i, client.inbox, i, len(body), body))
    client.send(b"".join(requests))
    for _ in requests:
        client.message()


def interested(client: Requester) -> None:
    """1,000 consumers of a stream that keeps what one of them wants."""
    client.create("I", subjects=["i.>"], retention="interest", storage="memory")
    for i in range(1000):
        _consumer(client, "I", filter_subject=f"i.{i}", inactive_threshold=10**13)


def unwanted(client: Requester) -> None:
    """10,000 messages without a subscriber."""
    client.fill("i.x%(i)d", count=10_000)


def snapshot(client: Requester) -> bytes:
    """Takes an archive of the keys."""
    client.send(b"SUB snap.> 2\r\n")
    client.ping()
    client.api("STREAM.SNAPSHOT.KV", {"deliver_subject": "snap.x"})
    pieces: list[bytes] = []
    while True:
        to, reply, body = client.message()
        if to == b"snap.x":
            if not reply or body.startswith(b"NATS/1.0"):
                return b"".join(pieces)
            pieces.append(body)
            client.send(b"PUB %b 0\r\n\r\n" % reply)


_ARCHIVE: list[bytes] = []


def archived(client: Requester) -> None:
    """An archive of 100,000 keys, whose stream is gone."""
    keys(client)
    _ARCHIVE.append(snapshot(client))
    client.api("STREAM.DELETE.KV")


def restore(client: Requester) -> None:
    """A stream of 100,000 messages is restored."""
    config = {"name": "KV", "subjects": ["kv.>"], "max_msgs_per_subject": 1, "storage": "file"}
    to = client.api("STREAM.RESTORE.KV", {"config": config, "state": {}})["deliver_subject"]
    archive = _ARCHIVE.pop()
    for begin in range(0, len(archive), 128 << 10):
        client.ask(to, archive[begin : begin + (128 << 10)])
    answer = json.loads(client.ask(to))
    if "error" in answer:
        raise RuntimeError(answer["error"])


def one_subject(client: Requester) -> None:
    """100,000 messages of one subject."""
    client.create("R", subjects=["r.>"], allow_rollup_hdrs=True)
    client.fill("r.a")


def streams(client: Requester) -> None:
    """1,000 streams with a consumer each."""
    thousand_streams(client)
    for i in range(1000):
        _consumer(client, f"T{i}", inactive_threshold=10**13)


_REPLIES: list[bytes] = []


def unacknowledged(client: Requester) -> None:
    """100,000 messages that are sent to a consumer, which acknowledges none."""
    client.create("W", subjects=["w.>"])
    client.fill("w.%(i)d")
    config = {"name": "C", "ack_policy": "explicit", "ack_wait": 10**13, "max_ack_pending": -1}
    client.api("CONSUMER.CREATE.W.C", {"stream_name": "W", "config": config})
    wanted = b'{"batch":%d,"no_wait":true}' % _KEYS
    client.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.W.C %b.w %d\r\n%b\r\n" % (client.inbox, len(wanted), wanted))
    _REPLIES[:] = [client.message()[1] for _ in range(_KEYS)]


def acknowledged(client: Requester) -> None:
    """A few acknowledgements, for three seconds: the state of the consumer is stored again and again."""
    for reply in _REPLIES[:30]:
        client.send(b"PUB %b 4\r\n+ACK\r\n" % reply)
        time.sleep(0.1)


def _rollup(what: str) -> Callable[[Requester], None]:
    def attack(client: Requester) -> None:
        client.ask("r.a", b"x", b"NATS/1.0\r\nNats-Rollup: %b\r\n\r\n" % what.encode())

    return attack


def republished(client: Requester) -> None:
    """A stream whose messages are published again, with as many tokens as are taken."""
    for tokens in (30_000, 250):
        config = {"republish": {"src": "b.*", "dest": "y." + ".".join(["{{wildcard(1)}}"] * tokens)}}
        with contextlib.suppress(RuntimeError):
            client.create("B", subjects=["b.*"], **config)


def channel(client: Requester) -> None:
    """20,000 messages in a channel, and a client that will subscribe to it."""
    request = ConnectRequest(client_id=b"storm", heartbeat_inbox=client.inbox + b".h", protocol=1, conn_id=b"storm")
    answer = client.ask("_STAN.discover.test-cluster", request.SerializeToString())
    client.streaming = ConnectResponse.FromString(answer)
    prefix = client.streaming.pub_prefix
    frames = []
    for number in range(20_000):
        message = PubMsg(client_id=b"storm", guid=b"%d" % number, subject=b"storm", data=b"x" * 100, conn_id=b"storm")
        payload = message.SerializeToString()
        frames.append(b"PUB %b.storm %d\r\n%b\r\n" % (prefix, len(payload), payload))
    client.send(b"".join(frames))
    client.ping()


def storm(client: Requester) -> None:
    """20 subscriptions that acknowledge nothing within their second, for six seconds."""
    for number in range(20):
        request = SubscriptionRequest(
            client_id=b"storm",
            subject=b"storm",
            inbox=b"nobody.%d" % number,
            max_in_flight=2**31 - 1,
            ack_wait_in_secs=1,
            start_position=4,  # the first message
        )
        client.ask(client.streaming.sub_requests.decode(), request.SerializeToString())
    time.sleep(6)


def _monitoring(path: str) -> Callable[[Requester], None]:
    def attack(client: Requester) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{client.monitoring}{path}", timeout=_PATIENCE) as answer:
            answer.read()

    return attack


def subscribed(client: Requester) -> None:
    """100,000 subscriptions."""
    client.send(b"".join(b"SUB s.%d.%d %d\r\n" % (i % 100, i, i + 10) for i in range(100_000)))
    client.ping()


class Attack(NamedTuple):
    """Requests about streams."""

    title: str
    prepare: Callable[[Requester], None]
    attack: Callable[[Requester], Any]


ATTACKS: dict[str, Attack] = {
    "info": Attack(
        "info, subjects_filter kv.*.777", keys, lambda c: c.api("STREAM.INFO.KV", {"subjects_filter": "kv.*.777"})
    ),
    "all": Attack("info, subjects_filter >", keys, lambda c: c.api("STREAM.INFO.KV", {"subjects_filter": ">"})),
    "turned": Attack(
        "the same of keys kv.N.M, filter kv.*.x",
        turned_keys,
        lambda c: c.api("STREAM.INFO.KV", {"subjects_filter": "kv.*.x"}),
    ),
    "next": Attack("direct get, next_by_subj that is not there", keys, lambda c: _get(c, seq=1, next_by_subj="kv.*.x")),
    "last": Attack("direct get, last_by_subj kv.*.55", keys, lambda c: _get(c, last_by_subj="kv.*.55")),
    "fifty": Attack("direct get, multi_last of 50 patterns", keys, lambda c: _get(c, multi_last=_patterns(50))),
    "multi": Attack("direct get, multi_last of 2,000 patterns", keys, lambda c: _get(c, multi_last=_patterns(2000))),
    "batch": Attack("direct get, a batch of 1,024", keys, lambda c: _get(c, seq=1, batch=1024, next_by_subj="kv.>")),
    "hundred": Attack("a consumer with 100 filters", keys, lambda c: _consumer(c, filter_subjects=_patterns(100))),
    "filters": Attack("a consumer with 1,000 filters", keys, lambda c: _consumer(c, filter_subjects=_patterns(1000))),
    "lasts": Attack(
        "a consumer of the last message of each key", keys, lambda c: _consumer(c, deliver_policy="last_per_subject")
    ),
    "subjects": Attack(
        "a stream with 10,000 subjects",
        nothing,
        lambda c: c.create("M", subjects=[f"m.{k}.*.a" for k in range(10_000)]),
    ),
    "sources": Attack(
        "1 MB of `sources`",
        nothing,
        lambda c: c.ask("$JS.API.STREAM.CREATE.D", b'{"name":"D","sources":[%b]}' % b",".join([b"{}"] * 300_000)),
    ),
    "nested": Attack("500 KB of brackets", nothing, lambda c: c.ask("$JS.API.STREAM.CREATE.D", b"[" * 500_000)),
    "republish": Attack(
        "a publish with a republish of 30,000 tokens", republished, lambda c: c.ask("b." + "q" * 3000, b"x")
    ),
    "purge": Attack("purge of a seventh, by a filter", keys, lambda c: c.api("STREAM.PURGE.KV", {"filter": "kv.3.>"})),
    "purge_half": Attack("purge of a half, by sequence", keys, lambda c: c.api("STREAM.PURGE.KV", {"seq": 50_000})),
    "purge_all": Attack("purge of all", keys, lambda c: c.api("STREAM.PURGE.KV")),
    "delete": Attack("delete of the stream", keys, lambda c: c.api("STREAM.DELETE.KV")),
    "rollup": Attack("roll-up of a subject with 100,000 messages", one_subject, _rollup("sub")),
    "rollup_all": Attack("roll-up of a stream with 100,000 messages", one_subject, _rollup("all")),
    "snapshot": Attack("a snapshot of 100,000 messages", keys, snapshot),
    "restore": Attack("a restore of 100,000 messages", archived, restore),
    "thousand": Attack("1,000 streams made in one write", nothing, thousand_streams),
    "list": Attack("a list of 1,000 streams", streams, lambda c: c.api("STREAM.LIST")),
    "names": Attack("names of streams, by a subject", streams, lambda c: c.api("STREAM.NAMES", {"subject": "*.x"})),
    "interest": Attack("10,000 messages, 1,000 consumers with interest", interested, unwanted),
    "pending": Attack("acknowledgements, while 100,000 messages wait for theirs", unacknowledged, acknowledged),
    "jsz": Attack("/jsz of 1,000 streams", streams, _monitoring("/jsz?consumers=1&config=1&limit=10000")),
    "subsz": Attack("/subsz of 100,000 subscriptions", subscribed, _monitoring("/subsz?subs=1&limit=100000")),
    "connz": Attack("/connz with 100,000 subscriptions", subscribed, _monitoring("/connz?subs=detail&limit=100000")),
    "storm": Attack("20 streaming subscriptions × 20,000 pending, ack wait 1 s", channel, storm),
}


def longest_wait(port: int, monitoring: int, name: str) -> dict[str, float]:
    """Prepares an attack and lets a client attack; says how long (ms) another one waited at most."""
    attack = ATTACKS[name]
    attacker = Requester(port, monitoring)
    attack.prepare(attacker)
    time.sleep(CALM)
    innocent = Client(port)
    alone = max(waits_until(innocent, time.perf_counter() + CALM))
    process = multiprocessing.get_context("fork").Process(target=attack.attack, args=(attacker,))
    begin = time.perf_counter()
    process.start()
    longest = max(waits_until(innocent, 0, process))
    took = time.perf_counter() - begin - CALM
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the attack failed ({process.exitcode})")
    return {"longest": longest * 1000, "alone": alone * 1000, "took": took * 1000}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="how long an innocent client waits")
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--monitoring", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(longest_wait(given.port, given.monitoring, given.attack)))


if __name__ == "__main__":
    main()
