from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stantools.format.envelope import Buffer
from stantools.nats.columns import FrameColumns
from stantools.nats.frames import (
    Frames,
    Payloads,
    Share,
    Span,
    Stop,
)

#: Rows in the table, the offset where parsing ended, why, the runs of equal routes, and for PARTIAL the bytes that the
#: frame at that offset has in all (0 where it cannot be determined yet).
Parsed = tuple[int, int, Stop, list[Span], int]

#: The shares of the routes; and of each piece the frames and the bytes of their payloads, 0 if it was not taken.
Gathered = tuple[list[Share], list[tuple[int, int]]]

#: In the order of the columns of a frame table.
_Row = tuple[int, int, int, int, int, int, int, int]

class Names:
    """Small numbers (0 to 2^31 - 1) under names, looked up by the kernels without an object per name.

    Subjects have their routes under them, for example. How many there are is bounded by whoever fills it.
    """
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add(self, name: bytes, number: int) -> None:
        """Puts a number under a name, instead of the one that may be there.

        Raises:
            ValueError: The number is negative or needs more than 31 bits.
        """
    def discard(self, name: bytes) -> None:
        """Forgets a name, known or not."""
    def begin_with(self, heads: Mapping[bytes, int]) -> None:
        """Puts numbers under all subjects that begin with a head and go on with tokens, without a blank.

        Args:
            heads: Numbers by head, which is up to a point, and no head begins with another one; instead of those that
                there were. What is below one may also be there itself, under the same number.

        Raises:
            ValueError: A number is negative or needs more than 31 bits.
        """
    def get(self, name: bytes) -> int:
        """Returns what is under a name or a head that it begins with, -1 for nothing."""
    def clear(self) -> None:
        """Forgets all."""

def parse_publishes(
    buffer: Buffer, begin: int, end: int, frames: Frames, table: Names, max_control_line: int, max_payload: int
) -> Parsed:
    """Parses PUB and HPUB frames up to the first thing that is not a whole one, and looks their subjects up.

    The runs of equal routes cover the rows without a gap. A run of route -1 (unknown) has one subject only, so that it
    is enough to look at its first row.

    Args:
        buffer: Bytes from a client.
        begin: Where an operation begins.
        end: Where the bytes end.
        frames: Filled from its first row on.
        table: The routes of subjects.
        max_control_line: Most bytes of a line behind its operation.
        max_payload: Most bytes of headers and payload; negative for no limit.

    Raises:
        ValueError: Begin or end lie outside, or the end is beyond 2 GiB.
    """

def parse_gathered(
    buffer: Buffer,
    ends: list[int],
    first: int,
    frames: Frames,
    table: Names,
    ranks: Buffer,
    max_control_line: int,
    max_payload: int,
) -> Gathered:
    """Parses pieces from several clients, each for itself, and sorts the frames by the ranks of their routes.

    A piece is taken if it is whole PUB frames, without headers, whose routes all have a rank, and there is room for
    them. The first piece that is not ends the parsing. Frames of the same rank stay in order.

    Args:
        buffer: The pieces, one after the other, the first of all at its start.
        ends: Where each piece ends.
        first: The piece to begin with.
        frames: Filled from its first row on.
        table: The routes of subjects.
        ranks: A byte for each route, by its number; 0 for none.
        max_control_line: Most bytes of a line behind its operation.
        max_payload: Most bytes of a payload; negative for no limit.

    Raises:
        ValueError: An end lies outside or in front of the one before, or is beyond 2 GiB.
        IndexError: There is no such piece.
    """

def parse_messages(
    buffer: Buffer, begin: int, end: int, frames: Frames, max_control_line: int, max_payload: int
) -> Parsed:
    """Parses MSG and HMSG frames, what a server sends: the subscription (`sid`) is in the column ROUTE.

    It is -1 if it is not a number of at most nine digits. All else is as for `parse_publishes`.
    """

def read_deliveries(
    buffer: Buffer, frames: Frames, begin: int, end: int, columns: FrameColumns, row: int = 0, shift: int = 0
) -> None:
    """Fills columns with messages that `parse_messages` has found, and with the numbers that their reply subjects say.

    Args:
        buffer: What the frames were parsed from, or a copy of that part of it.
        frames: The table.
        begin: The first of its rows.
        end: The row behind the last.
        columns: Filled with the messages.
        row: The first row to fill.
        shift: How many bytes further behind they lie in a copy.

    Raises:
        ValueError: The rows, or what they point to, lie outside.
    """

def encode_messages(
    buffer: Buffer, frames: Frames, begin: int, end: int, sid: bytes, headers: bool, subject: bytes | None = None
) -> bytes:
    """Returns MSG and HMSG frames of some rows for one subscription.

    Args:
        buffer: What the rows were parsed from.
        frames: The table.
        begin: The first row.
        end: The row behind the last.
        sid: The receiver's name of the subscription.
        headers: The receiver understands headers; else they are left out.
        subject: The subject of all, in place of those that they were sent to.

    Raises:
        ValueError: The rows, or what they point to, lie outside.
    """

def encode_message(subject: bytes, sid: bytes, payload: bytes, reply: bytes = b"", header_size: int = 0) -> bytes:
    """Returns one message for one subscription.

    Args:
        subject: Its subject.
        sid: Of the subscription.
        payload: Header block, if any, and payload.
        reply: Reply subject; empty for none.
        header_size: Bytes of the header block; 0 for none.

    Raises:
        ValueError: There are not as many bytes.
    """

def hand_out(
    messages: Sequence[tuple[bytes, bytes]], at: int, known: Mapping[bytes, Any], patient: bool
) -> tuple[int, int, int, list[Any]]:
    """Adds messages to what is collected for their receivers, as far as that is all there is to do.

    Args:
        messages: Subjects and payloads.
        at: The first one.
        known: Routes by subject.
        patient: Not to receivers who do not keep up.

    Returns:
        The first message that somebody else has to care for, which may be small and has one receiver who takes frames
        directly (`Client.direct`) otherwise; how many were added, and bytes of their payloads; and the clients for whom
        nothing was collected before.
    """

def subject_runs(buffer: Buffer, frames: Frames, begin: int, end: int) -> list[int]:
    """Returns the rows that have another subject than the row before, the first one among them.

    Args:
        buffer: What the rows were parsed from.
        frames: The table.
        begin: The first row.
        end: The row behind the last.

    Raises:
        ValueError: The rows, or what they point to, lie outside.
    """

def encode_numbers(
    buffer: Buffer, frames: Frames, begin: int, end: int, head: bytes, first: int, tail: bytes, answers: Frames
) -> tuple[bytes, int]:
    """Makes answers to rows that have a reply: each is its number, counted through all rows, between two texts.

    Args:
        buffer: What the rows were parsed from.
        frames: The table.
        begin: The first row.
        end: The row behind the last.
        head: What is in front of the number.
        first: The number of the first row, not negative.
        tail: What is behind the number.
        answers: Gets the answers, whose subjects are the replies, from its first row on. They have no route.

    Returns:
        The buffer of the answers, and how many they are.

    Raises:
        ValueError: The rows, or what they point to, lie outside, or the other table is too short.
    """

def put_acknowledgements(
    buffer: bytearray,
    at: int,
    frames: Frames,
    prefix: bytes,
    sequences: NDArray[np.int64],
    times: NDArray[np.int64],
    number: int,
    left: int,
) -> int:
    """Gives each row a subject for the acknowledgement of its first delivery (jetstream-api.md section 9) as its reply.

    Args:
        buffer: Where the messages are; the subjects are written into it, one behind the other.
        at: Where the first one goes.
        frames: The table.
        prefix: What they begin with, up to the point in front of the deliveries.
        sequences: Stream sequences.
        times: When the messages were stored, in nanoseconds since 1970.
        number: The consumer sequence of the first row; the others follow.
        left: How many messages are pending behind the first row; with each row it is one less.

    Returns:
        Where the last one ends.

    Raises:
        ValueError: There are not as many sequences and times as rows, or no room for all subjects.
    """

def encode_block(block: Payloads, begin: int, end: int, subject: bytes, sid: bytes) -> bytes:
    """Returns MSG frames for some payloads of a block, all with one subject and without reply.

    Args:
        block: The payloads.
        begin: The first one.
        end: The one behind the last.
        subject: The subject of all.
        sid: The receiver's name of the subscription.

    Raises:
        ValueError: The rows, or what they point to, lie outside.
    """

def encode_publishes(block: Payloads, begin: int, end: int, subject: bytes) -> bytes:
    """Returns PUB frames for some payloads of a block; as `encode_block`, for the other direction."""
