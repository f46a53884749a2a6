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
    """Decodes publishes (streaming-protocol.md sections 2 and 7.2) up to the first doubtful one.

    Rows `begin` to `end` of the frames fill the table from row 0 on. A publisher is identified by its connection id
    if it sends one, else by its client id. `clients`, `connections` and `channels` number the known names. `prefix`
    is the number of bytes before the channel in the NATS subject, negative if any subject is valid. Raises
    ValueError for a row that points outside of the buffer.
    """

def encode_records(
    buffer: Buffer, table: Table, rows: Rows, name: bytes, first_sequence: int, timestamp: int, crc: Crc | None
) -> MessageRecordBuffer:
    """Encodes publishes as records of a channel, in the given order (filestore.md sections 2 and 3.1).

    The records follow each other from the start of the buffer, each after its header of eight bytes. Sequences start
    at `first_sequence`; all have the same timestamp (ns since the epoch). Without `crc` the headers have zeros.
    Raises ValueError for a row that points outside of the buffer and for sequences of more than 64 bits.
    """

def encode_lone_records(
    buffer: Buffer, table: Table, wanted: Iterable[tuple[int, bytes, int, int]], crc: Crc | None
) -> list[Record]:
    """Encodes one publish for each of several channels, as `encode_records` does.

    `wanted` has row, channel, sequence and timestamp (ns since the epoch) of each.
    """

def read_acks(buffer: Buffer, frames: Frames, begin: int, end: int, channel: bytes) -> tuple[list[int], int]:
    """Decodes acknowledgements (streaming-protocol.md section 15) up to the first doubtful one.

    Returns the sequences, and the first row not taken: it is not an Ack, or names another channel; `end` if there is
    none. Raises ValueError for a row that points outside of the buffer.
    """

def read_lone_acks(buffer: Buffer, frames: Frames, rows: Sequence[int], channels: Sequence[bytes]) -> list[int | None]:
    """Decodes one acknowledgement for each of several channels; None where `read_acks` would stop."""
