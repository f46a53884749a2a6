"""What a store has to do, for whoever adds another one.

A store belongs to one server and is called from one thread. Names are bytes, as clients send them. States of clients
and subscriptions are the messages of the file store (`stantools.format.proto.store_pb2`): `ServerInfo`, `ClientInfo`,
`SubState`. Times are nanoseconds since the epoch.

Whatever goes wrong is raised as `StorageError`, with a text for the client and the log.
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

#: As a largest size: any.
ANY_SIZE: Final = 1 << 62


class StorageError(StantoolsError):
    """The store could not do what was asked; what it says about itself is what is true now."""


class LeaseLostError(StorageError):
    """Of several servers that want to lead, another one does."""


class InUseError(StorageError):
    """Another process has the directory."""


class DamagedStoreError(StorageError):
    """What is there cannot be started with; the offline tools say what is wrong."""

    def __init__(self, message: str, directory: Path) -> None:
        super().__init__(message)
        self.directory = directory  #: of the store


class OriginalStoreError(StorageError):
    """What is there was written by NATS Streaming, or by a broker of its own, and is not to be touched."""


class FlushOutcome(enum.Enum):
    """What became of a flush."""

    #: All of it is stored, and durable as configured.
    STORED = enum.auto()
    #: It could not be stored and was taken back.
    REFUSED = enum.auto()
    #: Nobody knows at the moment. `MessageStore.last` shows how much of it is in the log.
    UNKNOWN = enum.auto()


@dataclass(slots=True, eq=False)
class Flush:
    """A flush that is under way, of messages, of subscriptions or of a new channel, until `StateStore.completed` returns it.

    Attributes:
        outcome: What became of it.
        error: Why it is not stored, for clients and the log.
    """

    outcome: FlushOutcome = FlushOutcome.STORED
    error: str = ""


def first_sequence(records: MessageRecordBuffer, last: int) -> int:
    """Returns the first sequence of a block that is not empty, which has to follow the last one, without gaps.

    Raises:
        StorageError: It does not.
    """
    first: int = records.sequences.item(0)
    if first != last + 1 and last:
        raise StorageError(f"sequence {first} does not follow {last}")
    if (count := len(records.sizes)) > 1 and records.sequences.item(-1) != first + count - 1:
        raise StorageError(f"sequences are missing behind {first}")
    return first


class MessageStore(Protocol):
    """The messages of a channel (streaming-protocol.md section 10.7). The properties may be attributes."""

    @property
    def first(self) -> int:
        """First sequence that is there; one more than `last` if none is left; 0 if there never was one."""

    @property
    def last(self) -> int:
        """Last sequence that was ever stored; 0 if there never was one."""

    @property
    def count(self) -> int:
        """Messages that are there."""

    @property
    def bytes(self) -> int:
        """What they take in the store's own accounting (streaming-protocol.md section 10.9)."""

    @property
    def limits(self) -> ChannelLimits:
        """What the channel may hold."""

    def append(self, records: MessageRecordBuffer) -> None:
        """Adds messages; the first has the sequence `last + 1`, the others follow without gaps.

        The block does not change afterwards and may be kept.

        Raises:
            StorageError: Nothing of the block is stored, and maybe nothing of what is not stored yet: see `last`.
        """

    def flush(self) -> Flush | None:
        """Hands over what was appended: it is made durable as configured, can be read then, and limits are enforced.

        Further messages can be appended and flushed while flushes are under way. Those of a channel complete in order.
        If one is not stored, everything behind it is taken back, `last` says so, and no other flush of the channel that
        is under way completes. The next `append` and `flush` may succeed again.

        Returns:
            None if it is stored now; else what `StateStore.completed` returns when it is known, maybe the same object for
            several calls.

        Raises:
            StorageError: Everything that was not stored has been taken back, as above.
        """

    def read(self, first: int, count: int, size: int = 1 << 20) -> MessageRecordBuffer:
        """Returns messages in order, beginning with the first one at or behind `first`.

        At most `count`, and no more than fit into about `size` bytes, but at least one if there is one. An empty block
        if there is none, or if the next one cannot be read (which is logged).
        """

    def end_reading(self) -> None:
        """Gives back what reading holds, files and memory: nobody reads for a while."""

    def sequence_at(self, timestamp: int) -> int:
        """Returns the first sequence whose timestamp is not lower.

        Facts: streaming-protocol.md section 13, TimeDeltaStart and note 1.

        0 if there never was a message.
        """

    def expire(self, now: int) -> int | None:
        """Removes messages that are too old. Returns when the next one will be, None if none ever will."""


class SingleAppendStore(MessageStore, Protocol):
    """Messages that may also be added one by one."""

    def add(self, record: Record) -> bool:
        """Adds a message as `append` and `flush` do, nothing else being appended that is not stored yet.

        Args:
            record: It has the sequence `last + 1`, and a CRC in its header if the store wants one.

        Returns:
            Whether it is stored now. Otherwise nothing has changed, and it may be appended, which says what is wrong.
        """


class SubscriptionStore(Protocol):
    """The subscriptions of a channel. Records are gathered until `flush`, except where said.

    One that has `recorded`, and it is false, forgets what is sent and acknowledged: then nobody need say so, nor flush.
    """

    def create(self, state: pb.SubState) -> None:
        """Stores a new subscription and sets its id, which was never used in the channel before.

        Raises:
            StorageError: The channel has as many as it may have (`too many subscriptions per channel`), or the storage
                failed. Nothing is stored, the id is 0.
        """

    def update(self, state: pb.SubState) -> None:
        """Stores the changed state of a subscription. Raises StorageError."""

    def delete(self, subscription: int) -> None:
        """Removes a subscription and what it has pending. Raises StorageError."""

    def sent(self, subscription: int, sequences: Sequence[int]) -> None:
        """Takes note that messages were sent to a subscription and are pending. Raises StorageError."""

    def acked(self, subscription: int, sequences: Sequence[int]) -> None:
        """Takes note that messages are not pending any more. Raises StorageError."""

    def flush(self) -> Flush | None:
        """Makes it durable as configured. For a moment a kill may forget what was sent and acknowledged all the same.

        Returns:
            None if it is; else what `StateStore.completed` returns when it is known. Its outcome may be REFUSED; the records
            are kept for the next try.

        Raises:
            StorageError: It cannot be written; the records are kept as well.
        """


class ChannelLog(Protocol):
    """A channel, for those who only read it."""

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

    A channel may be made later. That begins with the first `MessageStore.flush`, even if nothing was appended. One that
    cannot be made is gone when `StateStore.completed` says so: nothing that was appended is stored, and the name is free.
    """

    messages: MessageStore
    subscriptions: SubscriptionStore
    #: What `StateStore.completed` returns when it is known whether the channel could be made, unless it is deleted before;
    #: None if it is there.
    making: Flush | None = None
    #: The messages once more, if single ones may be added.
    lone: SingleAppendStore | None = None


@dataclass(slots=True)
class RecoveredSubscription:
    """A subscription that was found, and its pending sequences in rising order."""

    state: pb.SubState
    pending: list[int]


@dataclass(slots=True)
class Recovered:
    """What a store found when it was opened.

    Attributes:
        server: Who the server was.
        clients: Who was connected.
        channels: Stores and subscriptions of each channel.
    """

    server: pb.ServerInfo
    clients: list[pb.ClientInfo] = field(default_factory=list)
    channels: Mapping[bytes, tuple[ChannelStore, list[RecoveredSubscription]]] = field(default_factory=dict)


class StateStore(Protocol):
    """All of a server's state.

    Attributes:
        kind: `MEMORY`, `FILE` or `JETSTREAM`, as monitoring shows it.
        limits: What the store may hold, for monitoring.
        crc: How the CRCs in the record headers of appended blocks are made; None if the store does not look at them.
        wake: Called, from any thread, when `completed` has something to return that nobody waits for.
    """

    kind: str
    limits: StoreLimits
    crc: Crc | None
    wake: Callable[[], None] | None

    @property
    def largest(self) -> int:
        """Bytes of an encoded message that can be stored."""

    def recover(self) -> Recovered | None:
        """Reads what is there; None if there is nothing. Called once, before anything else. Raises StorageError."""

    def init(self, server: pb.ServerInfo) -> None:
        """Stores who the server is. Raises StorageError."""

    def add_client(self, client: pb.ClientInfo) -> Flush | None:
        """Stores a client. Raises StorageError.

        Returns:
            None if it is stored now; else what `StateStore.completed` returns when it is known whether it is.
        """

    def delete_client(self, client_id: bytes) -> None:
        """Removes a client, at once. Raises StorageError."""

    def create_channel(self, name: bytes) -> ChannelStore:
        """Adds a channel, which counts from now on, even if it is made later (`ChannelStore.making`).

        Raises:
            StorageError: There are too many (`too many channels`), or it is known already that it cannot be made.
        """

    def delete_channel(self, name: bytes) -> None:
        """Removes a channel and all it has; its files may go later.

        Raises:
            StorageError: It cannot be removed, and is there as before.
        """

    def completed(self) -> Sequence[Flush]:
        """Returns flushes that were under way and are not any more; waits for those that take a moment only."""

    def settle(self) -> None:
        """Waits for what is under way, as long as it is reasonable at the end of a process."""

    def unwritten(self) -> list[str]:
        """Returns what is still to be written, or is being written: paths, or names. May be called from any thread."""

    def close(self) -> None:
        """Flushes and closes everything. Raises StorageError."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of trying to take the lock of a fault-tolerant group; neither taken nor a problem: not now.

    Attributes:
        taken: It was taken.
        problem: Why it can hardly be had, in the original's words; empty if somebody else has it.
        holder: The group of whoever has it; empty if that is not known.
    """

    taken: bool = False
    problem: str = ""
    holder: bytes = b""


class Lock(Protocol):
    """The lock of a store that only the active server of a fault-tolerant group has."""

    def take(self) -> Attempt:
        """Tries to take it. May be called in a thread."""

    def release(self) -> None:
        """Gives it back, if it was taken."""


class RemoteStore(Protocol):
    """A store whose content is somewhere else.

    Attributes:
        lease: What is said of the lease to whoever asks who leads; empty before it is taken.
    """

    lease: bytes

    def heard(self, record: bytes) -> None:
        """Takes note of what whoever leads says of its lease. Raises StorageError."""

    async def check(self) -> None:
        """Makes sure that `prepare` can be called some time, where there are several servers. Raises StorageError."""

    async def follow(self) -> None:
        """Fetches what is new while another server writes. Raises StorageError or a NatsError."""

    async def prepare(self, *, newcomer: bool = False) -> None:
        """Fetches what `recover` needs; called once, before it. Raises StorageError.

        Args:
            newcomer: Of several servers none was seen that leads; one that led before may still come.
        """

    async def look_again(self) -> list[bytes]:
        """Returns the channels to which others have written since `prepare`; the store has it then."""

    async def finish(self) -> None:
        """Waits for what is under way, some seconds at most; called before `close`."""
