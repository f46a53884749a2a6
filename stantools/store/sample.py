"""Sample stores: invented content in the format of a server; equal options give equal bytes.

For trials, tests and measurements. Messages are JSON, random bytes or text; the first channel has every kind of
subscription, with the history that led to it. On request the store is damaged afterwards (see
`stantools.store.damage`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stantools.errors import UsageError
from stantools.format.crc import Crc
from stantools.format.encryption import ChannelCipher, cipher_named
from stantools.format.layout import SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.options import SampleOptions
from stantools.progress import Progress
from stantools.store.atomic import new_directory
from stantools.store.damage import AppliedDamage, check_damages, inflict
from stantools.store.limits import DEFAULT_SLICE_MAX_BYTES, SliceLimits, is_channel_name
from stantools.store.logwriter import ClientsLog, SubsLog
from stantools.store.serverinfo import new_server_info
from stantools.store.slicewriter import SliceWriter
from stantools.store.storewriter import StoreWriter

__all__ = ["Sample", "SampleOptions", "channel_names", "write_sample"]

#: timestamp of the first message: 2023-11-14 22:13:20 UTC, in nanoseconds
BASE_TIME = 1_700_000_000_000_000_000

_NAMES = ("orders", "telemetry.device-1", "audit.log", "orders.eu", "jobs.queue")
_BATCH = 16384
_POOL = 1 << 20
_INTERVAL = 1_000_000  # nanoseconds between two messages
_SLICES = 4  # slices of a small channel
_MAX_DELIVERED = 200  # maximum number of messages sent to a subscription
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Sample:
    """The result of `write_sample`."""

    path: Path
    channels: tuple[str, ...]
    messages: int  #: messages in all channels, fillers not counted
    bytes: int  #: bytes of the messages' data
    damages: tuple[AppliedDamage, ...]  #: the applied damages, in order

    def as_json(self) -> dict[str, object]:
        """Returns what the command line prints as json."""
        damages = [{"name": each.name, "file": each.file, "detail": each.detail} for each in self.damages]
        counts = {"channels": list(self.channels), "messages": self.messages, "bytes": self.bytes}
        return {"path": str(self.path), **counts, "damages": damages}


def write_sample(directory: Path, options: SampleOptions | None = None, *, progress: Progress | None = None) -> Sample:
    """Writes a sample store.

    Args:
        directory: The new store; must not exist, or be empty.
        options: Its content.
        progress: Called with the number of messages as they are written.

    Raises:
        StoreUnreadableError: The file of the encryption key cannot be read.
        UsageError: The options make no sense, or a damage does not fit the store.
        StoreUnwritableError: The store cannot be written.
    """
    options = options or SampleOptions()
    if options.polynomial is None:
        raise UsageError("a new store has no polynomial to detect", "give --crc-poly a number or a name")
    crc, key = Crc(options.polynomial), options.encryption_key.key()
    _check(options)
    names, size = tuple(channel_names(options)), 0
    with new_directory(directory) as content:
        store = StoreWriter(content, crc)
        store.write_server(new_server_info(options.cluster_id))
        _write_clients(content, options, crc)
        pool = _ContentPool(options)
        for number, name in enumerate(names):
            gaps = options.gaps and number == len(names) - 1
            channel = _SampleChannel(options, number, name.encode(), pool, key, gaps=gaps)
            with store.slices(channel.name, _limits(options)) as writer:
                size += channel.write(writer, progress)
            _write_subscriptions(content, options, number, channel, crc)
        damages = inflict(content, names, options.damage, crc, options.seed)
    return Sample(directory, names, options.messages * len(names), size, tuple(damages))


def channel_names(options: SampleOptions) -> list[str]:
    """Returns the names of a sample's channels."""
    default_names = (_NAMES[n] if n < len(_NAMES) else f"channel.{n + 1}" for n in range(options.channels))
    return list(options.names or default_names)


def _check(options: SampleOptions) -> None:
    if min(options.channels, options.messages, options.size) < 0:
        raise UsageError("a sample cannot have fewer than 0 channels, messages or bytes")
    for name in options.names:
        if not is_channel_name(name):
            raise UsageError(f"{name!r} is not a valid channel name")
    check_damages(options.damage)


def _limits(options: SampleOptions) -> SliceLimits:
    """Returns the limits of slices."""
    if options.slice_msgs or options.slice_bytes:
        return SliceLimits(options.slice_msgs, options.slice_bytes)
    if options.messages * options.size < DEFAULT_SLICE_MAX_BYTES:
        return SliceLimits(max(math.ceil(options.messages / _SLICES), 1))
    return SliceLimits()


class _ContentPool:
    """Random bytes, letters and numbers, of which all channels use parts for their messages."""

    def __init__(self, options: SampleOptions) -> None:
        #: random bytes, more than two messages of them
        self.bytes = random.Random(f"{options.seed}:pool").randbytes(max(_POOL, 2 * options.size))
        #: the same number of letters and digits
        self.letters = self.bytes.translate(bytes(ord(_LETTERS[n % 62]) for n in range(256)))
        #: nanoseconds of delay of each message against a regular clock
        self.jitter = np.frombuffer(self.bytes[:_POOL], "<u4").astype(np.int64) % _INTERVAL


class _SampleChannel:
    """The messages of one channel, made batch by batch."""

    def __init__(
        self, options: SampleOptions, number: int, name: bytes, pool: _ContentPool, key: bytes | None, *, gaps: bool
    ) -> None:
        rng = random.Random(f"{options.seed}:{number}")
        self.name = name
        self._number = number
        self._size = options.size
        self._pool = pool.bytes
        self._letters = pool.letters
        self._jitter = pool.jitter
        # offset in the pool, so that channels differ
        self._start = rng.randrange(_POOL)
        self._make = (self._json, self._binary, self._text)[number % 3]
        self._cipher, self._code = None, cipher_named(options.cipher)
        # number of messages before each of two gaps
        self._cuts = (options.messages // 3, 2 * options.messages // 3) if gaps else None
        self.sequences = self._number_messages(options.messages)
        if key:
            self._cipher = ChannelCipher(key, name, random=rng.randbytes(4))

    def _number_messages(self, count: int) -> npt.NDArray[np.uint64]:
        sequences = np.arange(1, count + 1, dtype=np.uint64)
        if self._cuts:
            sequences += 100
            sequences[self._cuts[0] :] += 5
            sequences[self._cuts[1] :] += 7
        return sequences

    def write(self, writer: SliceWriter, progress: Progress | None) -> int:
        """Writes all messages and returns the bytes of their data."""
        count, size = len(self.sequences), 0
        borders = [0, *(self._cuts or ()), count]
        for part, (begin, end) in enumerate(pairwise(borders)):
            # The second gap is of the kind that releases before 0.9.2 left.
            writer.fill_gaps = part < 2
            for at in range(begin, end, _BATCH):
                stop = min(at + _BATCH, end)
                size += self._write_batch(writer, at, stop)
                if progress:
                    progress(stop - at)
        return size

    def _write_batch(self, writer: SliceWriter, at: int, stop: int) -> int:
        rows = np.arange(at, stop, dtype=np.int64)
        times = BASE_TIME + self._number * _INTERVAL // 2 + rows * _INTERVAL + self._jitter[rows % len(self._jitter)]
        payloads = list(self._make(at, stop)) if self._size else [b""] * (stop - at)
        size = sum(map(len, payloads))
        if self._cipher:
            payloads = [self._cipher.encrypt(payload, self._code) for payload in payloads]
        replies = None
        if self._number % 3 == 1:
            replies = [b"" if row % 5 else b"_INBOX.%022d" % row for row in range(at, stop)]
        writer.append(self.sequences[at:stop], times, replies, payloads)
        return size

    def _json(self, at: int, stop: int) -> Iterator[bytes]:
        letters, size = self._letters, self._size
        room = len(letters) - size
        for row in range(at, stop):
            head = b'{"order":%d,"customer":"c%d","note":"' % (row + 1, row % 97)
            begin = (row * 61 + self._start) % room
            rest = size - len(head) - 2
            yield head + letters[begin : begin + rest] + b'"}' if rest >= 0 else letters[begin : begin + size]

    def _binary(self, at: int, stop: int) -> Iterator[bytes]:
        pool, size = self._pool, self._size
        room = len(pool) - size
        for row in range(at, stop):
            begin = (row * 61 + self._start) % room
            yield pool[begin : begin + size] if row % 17 != 16 else b""

    def _text(self, at: int, stop: int) -> Iterator[bytes]:
        letters, size = self._letters, self._size
        room = len(letters) - size
        for row in range(at, stop):
            begin = (row * 61 + self._start) % room
            yield letters[begin : begin + size]


def _identifier(rng: random.Random) -> bytes:
    return "".join(rng.choices(_LETTERS, k=22)).encode()


def _write_clients(root: Path, options: SampleOptions, crc: Crc) -> None:
    """Writes the clients: two that are connected, and two that have disconnected."""
    rng = random.Random(f"{options.seed}:clients")
    with ClientsLog(root, crc) as log:
        if options.no_subscriptions:
            return
        for name in (b"publisher", b"app-1", b"app-2", b"app-3"):
            info = pb.ClientInfo(id=name, hb_inbox=b"_INBOX." + _identifier(rng), conn_id=_identifier(rng))
            info.protocol, info.ping_interval, info.ping_max_out = 1, 5, 3
            log.add(info)
        for name in (b"app-3", b"publisher"):
            log.delete(name)


def _write_subscriptions(root: Path, options: SampleOptions, number: int, channel: _SampleChannel, crc: Crc) -> None:
    directory = root / channel.name.decode()
    with SubsLog(directory, root, crc) as log:
        if not options.no_subscriptions:
            history = _SubscriptionHistory(log, random.Random(f"{options.seed}:{number}:subs"), channel.sequences)
            history.durables()
            if number == 0:
                history.everything_else()


class _SubscriptionHistory:
    """Subscriptions that begin, get messages and end (filestore.md section 4.2)."""

    def __init__(self, log: SubsLog, rng: random.Random, sequences: npt.NDArray[np.uint64]) -> None:
        self._log = log
        self._rng = rng
        self._recent = [int(sequence) for sequence in sequences[-_MAX_DELIVERED:]]
        self._last_id = 0

    def durables(self) -> None:
        """One durable that is active, one that is offline."""
        self._deliver(self._subscribe(b"app-1", durable_name=b"billing"), len(self._recent), unacked=3)
        offline = self._subscribe(b"app-2", durable_name=b"reports")
        self._deliver(offline, len(self._recent) // 2, unacked=2)
        self._update(offline, is_closed=True)

    def everything_else(self) -> None:
        """All other content that the file can have."""
        half, all_ = len(self._recent) // 2, len(self._recent)
        left = self._subscribe(b"app-3", durable_name=b"gone")
        self._deliver(left, half, unacked=4)
        self._update(left, is_closed=True)
        resumed = self._subscribe(b"app-1", durable_name=b"resumed", max_in_flight=5)
        self._deliver(resumed, half, unacked=5)
        self._update(resumed, is_closed=True)
        self._update(resumed, is_closed=False, inbox=self._inbox(), ack_inbox=self._inbox(), max_in_flight=50)
        self._deliver(self._subscribe(b"app-1"), all_, unacked=1)
        plain = self._subscribe(b"app-3", ack_wait_in_secs=60)
        self._deliver(plain, half, unacked=2)
        self._log.delete(plain.id, 0)
        one = self._subscribe(b"app-1", q_group=b"workers")
        two = self._subscribe(b"app-2", q_group=b"workers")
        for turn, sequence in enumerate(self._recent):
            self._send((one, two)[turn % 2], [sequence])
            if turn % 2 == 0:
                self._log.acked(one.id, sequence)
        for sequence in self._recent[1::2][-2:]:
            # redelivered to the other member
            self._send(one, [sequence])
            self._log.acked(two.id, sequence)
        stays = self._subscribe(b"app-1", q_group=b"team:durable", is_durable=True)
        leaves = self._subscribe(b"app-2", q_group=b"team:durable", is_durable=True)
        self._deliver(leaves, half, unacked=3)
        self._send(stays, self._recent[:half][-3:])
        self._log.delete(leaves.id, 0)
        shadow = self._subscribe(b"app-3", q_group=b"team:all-gone", is_durable=True)
        self._deliver(shadow, half, unacked=2)
        self._update(shadow, client_id=b"")

    def _inbox(self) -> bytes:
        return b"_INBOX." + _identifier(self._rng)

    def _subscribe(self, client: bytes, **fields: object) -> pb.SubState:
        self._last_id += 1
        state = pb.SubState(
            id=self._last_id,
            client_id=client,
            inbox=self._inbox(),
            ack_inbox=self._inbox(),
            max_in_flight=1024,
            ack_wait_in_secs=30,
            last_sent=self._recent[0] - 1 if self._recent else 0,
            is_durable="durable_name" in fields,
        )
        state.MergeFrom(pb.SubState(**fields))  # type: ignore[arg-type]
        self._log.new(state)
        return state

    def _send(self, state: pb.SubState, sequences: list[int]) -> None:
        if sequences:
            self._log.flow(SubRecord.MSG, state.id, sequences)
            state.last_sent = max(state.last_sent, sequences[-1])

    def _deliver(self, state: pb.SubState, count: int, unacked: int) -> None:
        """Sends the first of the recent messages and acknowledges all but the last few of them."""
        sequences = self._recent[:count]
        self._send(state, sequences)
        if sequences[:-unacked]:
            self._log.flow(SubRecord.ACK, state.id, sequences[:-unacked])

    def _update(self, state: pb.SubState, **fields: object) -> None:
        for name, value in fields.items():
            setattr(state, name, value)
        self._log.update(state)
