from collections.abc import Iterable, Sequence

from broker.record_buffer import MessageRecordBuffer, Record
from broker.streaming.publishes.columns import PublishColumns, Rows, Table
from stantools.format.crc import Crc
from stantools.format.envelope import Buffer
from stantools.nats.frames import Frames
from stantools.nats.kernels import Names

def read_publishes(
    buffer: Buffer,
    frames: Frames,
    begin: int,
    end: int,
    clients: Names,
    connections: Names,
    channels: Names,
    table: Table,
    prefix: int = -1,
) -> PublishColumns:
    """Decodes publishes (streaming-protocol.md sections 2 and 7.2) up to the first that is not plainly good.

    A publisher is known by its connection id if it sends one, else by its client id.

    Args:
        buffer: What the frames point into.
        frames: Table of frames, each with a PubMsg.
        begin: First row of it.
        end: The row behind the last.
        clients: Numbers of the client ids.
        connections: Numbers of the connection ids.
        channels: Numbers of the channels that need no further look.
        table: Is filled, from row 0 on.
        prefix: What comes before the channel in the NATS subject, in bytes; negative if the subject may be any.

    Raises:
        ValueError: A row of the frames, or what it points to, lies outside.
    """

def encode_records(
    buffer: Buffer, table: Table, rows: Rows, name: bytes, first_sequence: int, timestamp: int, crc: Crc | None
) -> MessageRecordBuffer:
    """Encodes publishes as messages of a channel, as they are delivered and stored (filestore.md sections 2 and 3.1).

    The records lie one after the other from the start of the buffer, each behind its header of eight bytes.

    Args:
        buffer: What the table points into.
        table: From `read_publishes`.
        rows: The rows to take, in this order.
        name: The channel.
        first_sequence: Sequence of the first; the others follow.
        timestamp: Nanoseconds since the epoch, of all.
        crc: How to make the CRCs of the headers; None writes zeros.

    Raises:
        ValueError: A row, or what it points to, lies outside; or a sequence does not fit into 64 bits.
    """

def encode_lone_records(
    buffer: Buffer, table: Table, wanted: Iterable[tuple[int, bytes, int, int]], crc: Crc | None
) -> list[Record]:
    """Encodes publishes as messages of several channels, each for itself.

    Args:
        buffer: What the table points into.
        table: From `read_publishes`.
        wanted: Of each the row, the channel, the sequence, the timestamp.
        crc: As for `encode_records`.

    Raises:
        ValueError: A row, or what it points to, lies outside; or a sequence or timestamp does not fit into 64 bits.
    """

def read_acks(buffer: Buffer, frames: Frames, begin: int, end: int, channel: bytes) -> tuple[list[int], int]:
    """Decodes acknowledgements of messages (streaming-protocol.md section 15) up to the first that is not plainly good.

    Args:
        buffer: What the frames point into.
        frames: Table of frames, each with an Ack.
        begin: First row of it.
        end: The row behind the last.
        channel: Which channel they should name.

    Returns:
        The sequences, and the row that was not taken because it is no Ack, or not one of that channel; else `end`.

    Raises:
        ValueError: A row of the frames, or what it points to, lies outside.
    """

def read_lone_acks(buffer: Buffer, frames: Frames, rows: Sequence[int], channels: Sequence[bytes]) -> list[int | None]:
    """Decodes acknowledgements of messages of several channels, one each.

    Args:
        buffer: What the frames point into.
        frames: Table of frames.
        rows: Rows of it, each with an Ack.
        channels: Which channel each should name.

    Returns:
        The sequences; None for what `read_acks` does not take.

    Raises:
        ValueError: A row of the frames, or what it points to, lies outside; or there is not a channel for each.
    """
