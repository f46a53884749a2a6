from broker.stores.streams.contents import Contents, RowSegment
from broker.stores.streams.subject_filter import SubjectRows
from stantools.format.envelope import Buffer
from stantools.nats.frames import Frames

def measure_rows(frames: Frames, begin: int, end: int) -> tuple[int, int, int, int, int]:
    """Returns the sizes of the messages in rows `begin` to `end` of a table, of which there must be at least one.

    They are: number of messages with headers; bytes of all headers and payloads, and of all subjects; bytes of the
    largest headers with payload, and of the longest subject. Raises ValueError if there are no such rows.
    """

def enter_rows(
    contents: Contents,
    buffer: Buffer,
    frames: Frames,
    begin: int,
    end: int,
    time: int,
    key: bytes,
    place: int,
    room: int,
    most: int,
) -> tuple[bytes, list[SubjectRows]]:
    """Adds messages that arrived together as the next rows of the last segment, as many as fit.

    Args:
        contents: The table of the stream; its last segment ends with the last sequence.
        buffer: The bytes of the messages.
        frames: Their table.
        begin: The first row.
        end: The row after the last; there must be at least one.
        time: Nanoseconds since 1970.
        key: Hash key of the block for their records, 32 bytes.
        place: Offset in the block.
        room: Bytes available for the records; the first one is added in any case.
        most: Messages per subject at most; 0 is no limit.

    Returns:
        The consecutive records; the subjects that now have too many messages.

    Raises:
        ValueError: A row lies outside the buffer, or is too large for a record. No message is added then.
    """

def drop_firsts(
    contents: Contents, over: list[SubjectRows], most: int, key: bytes
) -> tuple[list[tuple[int, int]], list[tuple[RowSegment, int]], bytes, bytes]:
    """Removes the first messages of subjects that have more than `most`, which is at least 1.

    `key` is the hash key of the block for the tombstones, 32 bytes. Returns sequence and subject number of the
    removed messages; the segments that lost messages, with counts; the tombstones; their sequences, eight bytes each.
    """
