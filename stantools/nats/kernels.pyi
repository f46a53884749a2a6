from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stantools.format.envelope import Buffer
from stantools.nats.columns import FrameColumns
from stantools.nats.frames import (
    Frames,
    ParseStop,
    Payloads,
    Share,
    Span,
)

# All functions raise ValueError if rows, or the bytes they point to, lie outside of their buffer.

#: The number of rows in the table, the offset of the end, its reason, the runs of equal routes, and for PARTIAL the
#: total bytes of the frame at that offset (0 if not known yet).
Parsed = tuple[int, int, ParseStop, list[Span], int]

#: The shares of the routes; and of each piece the number of frames and the bytes of their payloads, 0 if it was not
#: taken.
Gathered = tuple[list[Share], list[tuple[int, int]]]

#: in the order of the columns of a frame table
_Row = tuple[int, int, int, int, int, int, int, int]

class Names:
    """Small numbers (0 to 2^31 - 1) by name, looked up by the kernels without an object per name.

    The names are subjects with their routes, for example. The caller bounds their number.
    """
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add(self, name: bytes, number: int) -> None:
        """Sets the number of a name; ValueError if it is negative or needs more than 31 bits."""
    def discard(self, name: bytes) -> None: ...
    def begin_with(self, heads: Mapping[bytes, int]) -> None:
        """Sets the numbers of all subjects that begin with a head and continue with tokens, without a blank.

        `heads` replaces all earlier heads. A head ends with a dot, and none is the prefix of another one. A name
        below a head may also be added, with the same number. Raises ValueError if a number is negative or needs more
        than 31 bits.
        """
    def get(self, name: bytes) -> int:
        """Returns the number of a name or of its head, -1 for none."""
    def clear(self) -> None: ...

def parse_publishes(
    buffer: Buffer, begin: int, end: int, frames: Frames, table: Names, max_control_line: int, max_payload: int
) -> Parsed:
    """Parses PUB and HPUB frames up to the first incomplete or different operation, and looks their subjects up.

    The runs of equal routes cover the rows without a gap. A run of route -1 (unknown) has one subject only, so that
    its first row suffices. `max_control_line` limits the bytes of a line after its operation, `max_payload` headers
    and payload (negative: no limit).
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
    """Parses pieces of several clients, each by itself, and sorts the frames by the ranks of their routes.

    A piece is taken if it consists of whole PUB frames, without headers, whose routes all have a rank, and which fit
    into the table. The first other piece ends the parsing. Frames of the same rank stay in order. `ends` are the
    ends of successive pieces; `ranks` has a byte for each route, 0 for none.
    """

def parse_messages(
    buffer: Buffer, begin: int, end: int, frames: Frames, max_control_line: int, max_payload: int
) -> Parsed:
    """Parses MSG and HMSG frames, which servers send: the subscription (`sid`) is in the column ROUTE.

    It is -1 if it is not a number of at most nine digits. The rest is the same as for `parse_publishes`.
    """

def read_deliveries(
    buffer: Buffer, frames: Frames, begin: int, end: int, columns: FrameColumns, row: int = 0, shift: int = 0
) -> None:
    """Fills columns, from `row` on, with messages of `parse_messages`, and with the numbers in their reply subjects.

    `buffer` is the parsed one, or a copy of a part of it, in which the messages lie `shift` bytes further on.
    """

def encode_messages(
    buffer: Buffer, frames: Frames, begin: int, end: int, sid: bytes, headers: bool, subject: bytes | None = None
) -> bytes:
    """Returns MSG and HMSG frames of the rows `begin` to `end` for one subscription.

    `headers` False omits headers, for receivers without support. `subject` replaces the subjects of the rows.
    """

def encode_message(subject: bytes, sid: bytes, payload: bytes, reply: bytes = b"", header_size: int = 0) -> bytes:
    """Returns one message for one subscription.

    `payload` includes the header block, if any, of `header_size` bytes (ValueError if there are fewer).
    """

def hand_out(
    messages: Sequence[tuple[bytes, bytes]], at: int, known: Mapping[bytes, Any], patient: bool
) -> tuple[int, int, int, list[Any]]:
    """Adds messages to the buffers of their receivers, until one needs other work.

    `messages` are subjects and payloads, from `at` on; `known` holds routes by subject. With `patient`, receivers
    that lag are left out. Returns the index of the first message that the caller must handle, which may be small and
    have a single receiver that takes frames directly (`Client.direct`) otherwise; the number of added messages, and
    the bytes of their payloads; and the clients whose buffers were empty before.
    """

def hand_out_runs(
    runs: Sequence[tuple[bytes, int, int]], block: Payloads, at: int, known: Mapping[bytes, Any]
) -> tuple[int, int, int, list[Any]]:
    """Does the same as `hand_out` for runs of rows of a block: subject, first row, row after the last.

    Each run is left out, or added as a whole. Returns the index of the first run that the caller must handle, the
    number of added messages, the bytes of their payloads, and the clients whose buffers were empty before.
    """

def subject_runs(buffer: Buffer, frames: Frames, begin: int, end: int) -> list[int]:
    """Returns the rows whose subject differs from that of the row before, the first one included."""

def encode_numbers(
    buffer: Buffer, frames: Frames, begin: int, end: int, head: bytes, first: int, tail: bytes, answers: Frames
) -> tuple[bytes, int]:
    """Makes an answer to each row with a reply: its number, counted through all rows from `first`, between two texts.

    The rows of `answers`, from the first on, get the answers, with the replies as subjects and without routes.
    Returns the buffer of the answers, and their number. Raises ValueError if the rows, or the bytes they point to,
    lie outside, or the other table is too short.
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
    """Gives each row, as its reply, the subject that acknowledges its first delivery (jetstream-api.md section 9).

    The subjects are written one after the other into `buffer`, the buffer of the messages, from `at` on. They begin
    with `prefix`, which ends with the dot before the number of deliveries. `sequences` are those of the stream,
    `times` nanoseconds since 1970; `number` is the consumer sequence of the first row; `left` is the number of
    messages pending after the first row. Returns the end of the last subject.
    """

def encode_block(block: Payloads, begin: int, end: int, subject: bytes, sid: bytes) -> bytes:
    """Returns MSG frames for the payloads `begin` to `end` of a block, with one subject and without reply."""

def encode_publishes(block: Payloads, begin: int, end: int, subject: bytes) -> bytes:
    """Returns PUB frames for some payloads of a block; arguments as of `encode_block`."""
