from broker.stores.streams.contents import Contents, RowSegment, SubjectRows
from stantools.format.envelope import Buffer
from stantools.nats.frames import Frames

def measure_rows(frames: Frames, begin: int, end: int) -> tuple[int, int, int, int, int]:
    """Returns the sizes of messages.

    Args:
        frames: Their table.
        begin: The first row.
        end: The row behind the last; there is one at least.

    Returns:
        How many have headers; bytes of all headers and payloads, of all subjects, of the largest headers and payload,
        and of the longest subject.

    Raises:
        ValueError: There are no such rows.
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
    """Adds messages that have come at the same time as the next rows of the last segment, as many as there is room for.

    Args:
        contents: What the stream has; its last segment ends with its last sequence.
        buffer: Where the messages are.
        frames: Their table.
        begin: The first row.
        end: The row behind the last; there is one at least.
        time: Nanoseconds since 1970.
        key: Of the block that their records go to, 32 bytes.
        place: Where in the block.
        room: Bytes that the records may have; the first one is added in any case.
        most: How many messages a subject may have; 0 for any number.

    Returns:
        The records, one behind the other; subjects that have more messages now.

    Raises:
        ValueError: A row lies outside, or is too large for a record; nothing is added then.
    """

def drop_firsts(
    contents: Contents, over: list[SubjectRows], most: int, key: bytes
) -> tuple[list[tuple[int, int]], list[tuple[RowSegment, int]], bytes, bytes]:
    """Takes out the first messages of subjects that have too many.

    Args:
        contents: What the stream has.
        over: The subjects.
        most: How many messages each may have, 1 at least.
        key: Of the block that the tombstones go to, 32 bytes.

    Returns:
        What is gone: sequence, and number of the subject; the segments that have lost messages, with how many; the
        tombstones; their sequences, eight bytes each.
    """
