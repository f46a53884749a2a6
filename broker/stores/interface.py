"""The interface of stores.

A store belongs to one server and is called from one thread. Names are bytes, as clients send them. States of clients
and subscriptions are the messages of the file store (`stantools.format.proto.store_pb2`): `ServerInfo`,
`ClientInfo`, `SubState`. Times are nanoseconds since the epoch.

Every failure is raised as `StorageError`, with a text for the client and the log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from broker.record_buffer import MessageRecordBuffer, Record
from stantools.errors import StantoolsError
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.limits import ChannelLimits, StoreLimits

#: largest message of a store that has no such limit
ANY_SIZE: Final = 1 << 62


class StorageError(StantoolsError):
    """The store failed; its attributes show the state after the failure."""


class LeaseLostError(StorageError):
    """Of several servers that want to lead, another one was faster."""


class InUseError(StorageError):
    """Another process uses the directory."""


class DamagedStoreError(StorageError):
    """The server cannot start with the stored state; the offline tools show the damage."""

    def __init__(self, message: str, directory: Path) -> None:
        super().__init__(message)
        self.directory = directory


class OriginalStoreError(StorageError):
    """NATS Streaming, or a broker with a file store, wrote the directory, which must stay untouched."""


class FlushOutcome(enum.Enum):
    #: All of it is stored, and durable as configured.
    STORED = enum.auto()
    #: It could not be stored and was taken back.
    REFUSED = enum.auto()
    #: Unknown at the moment. `MessageStore.last` shows how much of it is in the log.
    UNKNOWN = enum.auto()


@dataclass(slots=True, eq=False)
class Flush:
    """A flush under way, of messages, of subscriptions or of a new channel, until `StateStore.completed` returns it.

    The caller of `completed` calls the followers, in order.
    """

    outcome: FlushOutcome = FlushOutcome.STORED
    error: str = ""
    followers: list[Callable[[Flush], None]] = field(default_factory=list)


def first_sequence(records: MessageRecordBuffer, last: int) -> int:
    """Returns a block's first sequence; StorageError if it does not follow the last sequence, or has gaps."""
    first: int = records.sequences.item(0)
    if first != last + 1 and last:
        raise StorageError(f"sequence {first} does not follow {last}")
    if (count := len(records.sizes)) > 1 and records.sequences.item(-1) != first + count - 1:
        raise StorageError(f"sequences are missing after {first}")
    return first


class MessageStore(Protocol):
    """The messages of a channel (streaming-protocol.md section 10.7). The properties may be attributes."""

    @property
    def first(self) -> int:
        """First stored sequence; `last + 1` if none is left; 0 if there never was one."""

    @property
    def last(self) -> int:
        """Last sequence ever stored; 0 if there never was one."""

    @property
    def count(self) -> int:
        """Stored messages."""

    @property
    def bytes(self) -> int:
        """Their size in the store's own accounting (streaming-protocol.md section 10.9)."""

    @property
    def limits(self) -> ChannelLimits: ...

    def append(self, records: MessageRecordBuffer) -> None:
        """Adds messages with the sequences from `last + 1` on. The block must not change afterwards.

        After a StorageError none of them is stored, and earlier messages that were not stored yet may be lost: see
        `last`.
        """

    def flush(self) -> Flush | None:
        """Stores appended messages, durably as configured, makes them readable, and enforces the limits.

        Returns None if they are stored now; else the flush that `StateStore.completed` returns later, maybe the same
        object for several calls. Messages can be appended and flushed while flushes are under way; those of a
        channel complete in order. If one fails, or a StorageError is raised, all messages that are not stored are
        taken back, as `last` shows, and the channel's other flushes under way never complete. The next `append` and
        `flush` may succeed again.
        """

    def read(self, first: int, count: int, size: int = 1 << 20) -> MessageRecordBuffer:
        """Returns messages in order, from the first one at or after `first`.

        At most `count` messages of about `size` bytes, but at least one if there is one. The block is empty if there
        is none, or if the next one cannot be read (which is logged).
        """

    def end_reading(self) -> None:
        """Releases the files and memory used for reading: no reader is expected for a while."""

    def sequence_at(self, timestamp: int) -> int:
        """Returns the first sequence whose timestamp is not lower; 0 if there never was a message.

        Facts: streaming-protocol.md section 13, TimeDeltaStart and note 1.
        """

    def expire(self, now: int) -> int | None:
        """Removes expired messages. Returns when the next one expires; None if none ever will."""


class SingleAppendStore(MessageStore, Protocol):
    """Messages that may also be added one by one."""

    def add(self, record: Record) -> bool:
        """Adds a message as `append` and `flush` do; no other appended message may be pending.

        The record has the sequence `last + 1`, and a CRC in its header if the store wants one. Returns whether it is
        stored now; if not, nothing has changed, and `append` shows the error.
        """


class SubscriptionStore(Protocol):
    """The subscriptions of a channel. Records are gathered until `flush`, except where said.

    A store with a false attribute `recorded` ignores deliveries and acknowledgements: callers need not report or
    flush them.
    """

    def create(self, state: pb.SubState) -> None:
        """Stores a new subscription and sets its id, which was never used in the channel before.

        After a StorageError (one is `too many subscriptions per channel`) nothing is stored, and the id is 0.
        """

    def update(self, state: pb.SubState) -> None:
        """Stores the changed state of a subscription."""

    def delete(self, subscription: int) -> None:
        """Removes a subscription and its pending messages."""

    def sent(self, subscription: int, sequences: Sequence[int]) -> None:
        """Records that messages were sent to a subscription and are pending."""

    def acked(self, subscription: int, sequences: Sequence[int]) -> None:
        """Records that messages are no longer pending."""

    def flush(self) -> Flush | None:
        """Writes the records, durably as configured.

        Returns None if they are written; else the flush that `StateStore.completed` returns later. After a failure (a
        StorageError, or REFUSED) the records are kept for the next try. For a moment a kill may still lose records of
        deliveries and acknowledgements.
        """


class ChannelLog(Protocol):
    """A channel for its readers."""

    @property
    def name(self) -> bytes:
        """Its name."""

    @property
    def messages(self) -> MessageStore:
        """Its messages."""

    @property
    def visible(self) -> int:
        """The last sequence that is stored and may be delivered."""


@dataclass(slots=True)
class ChannelStore:
    """The two stores of a channel.

    A channel may be made later: the first `MessageStore.flush` begins that, even without messages. If the channel
    cannot be made, it is gone when `StateStore.completed` returns `making`: its messages are not stored, and the name
    is free.
    """

    messages: MessageStore
    subscriptions: SubscriptionStore
    #: Flush that `StateStore.completed` returns when the outcome of the creation is known, unless the channel is
    #: deleted before; None if the channel exists.
    making: Flush | None = None
    #: `messages` again, if single messages may be added
    single_store: SingleAppendStore | None = None


@dataclass(slots=True)
class RecoveredSubscription:
    """A subscription at recovery, and its pending sequences in rising order."""

    state: pb.SubState
    pending: list[int]


@dataclass(slots=True)
class Recovered:
    """The state of a store when it was opened: server, connected clients, and the stores of each channel."""

    server: pb.ServerInfo
    clients: list[pb.ClientInfo] = field(default_factory=list)
    channels: Mapping[bytes, tuple[ChannelStore, list[RecoveredSubscription]]] = field(default_factory=dict)


class StateStore(Protocol):
    """All of a server's state.

    Attributes:
        kind: `MEMORY`, `FILE` or `JETSTREAM`, as monitoring shows it.
        limits: Limits of the store, for monitoring.
        crc: Computes the CRCs in the record headers of appended blocks; None if the store ignores them.
        wake: Called, from any thread, when `completed` has results that the caller does not await.
    """

    kind: str
    limits: StoreLimits
    crc: Crc | None
    wake: Callable[[], None] | None

    @property
    def largest(self) -> int:
        """Bytes of an encoded message that can be stored."""

    def recover(self) -> Recovered | None:
        """Reads the stored state; None if there is none. Called once, before anything else."""

    def init(self, server: pb.ServerInfo) -> None:
        """Stores the server's identity."""

    def add_client(self, client: pb.ClientInfo) -> Flush | None:
        """Stores a client. Returns None if it is stored now, else the flush that `completed` returns later."""

    def delete_client(self, client_id: bytes) -> None:
        """Removes a client at once."""

    def create_channel(self, name: bytes) -> ChannelStore:
        """Adds a channel, which counts from now on, even if it is made later; one error is `too many channels`."""

    def delete_channel(self, name: bytes) -> None:
        """Removes a channel with its content; its files may be removed later. After an error it is unchanged."""

    def completed(self) -> Sequence[Flush]:
        """Returns completed flushes; waits for those only that take a moment."""

    def settle(self) -> None:
        """Waits for pending work, as long as is reasonable at the end of a process."""

    def unwritten(self) -> list[str]:
        """Returns paths or names of the content that is still to be written. May be called from any thread."""

    def close(self) -> None:
        """Flushes and closes everything."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of trying to take the lock of a fault-tolerant group; neither taken nor a problem means: not now.

    Attributes:
        problem: Why the lock is hardly available, in the original's words; empty if another server holds it.
        holder: The group of the holder; empty if it is not known.
    """

    taken: bool = False
    problem: str = ""
    holder: bytes = b""


class Lock(Protocol):
    """The lock of a store that only the active server of a fault-tolerant group holds."""

    def take(self) -> Attempt:
        """Tries to take the lock. May be called in a thread."""

    def release(self) -> None:
        """Releases the lock, if it was taken."""


class RemoteStore(Protocol):
    """A store whose content is on other servers.

    Attributes:
        lease: The lease record for servers that ask for the leader; empty before the lease is taken.
    """

    lease: bytes

    def note_lease(self, record: bytes) -> None:
        """Handles the lease record of the leading server."""

    async def check(self) -> None:
        """Checks that `prepare` will be possible, where there are several servers."""

    async def follow(self) -> None:
        """Fetches new content while another server writes. Raises StorageError or a NatsError."""

    async def prepare(self, *, newcomer: Callable[[float], bool] | None = None) -> None:
        """Fetches the content that `recover` needs; called once, before it.

        Args:
            newcomer: Returns, once there is an answer, whether this server saw no leader among several, so that an
                earlier leader may still return. Its argument is the time of the last request without an answer, 0 for
                none.
        """

    async def update_changed_channels(self) -> list[bytes]:
        """Returns the channels to which other servers have written since `prepare`; the store has these messages."""

    async def finish(self) -> None:
        """Waits some seconds at most for pending work; called before `close`."""
