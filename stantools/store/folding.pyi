from array import array
from typing import NamedTuple

from stantools.format.columns import LogColumns
from stantools.format.envelope import Buffer

class Folded(NamedTuple):
    """The result of folding a log: one row for each subscription, in order of creation."""

    id: array[int]  #: subscription ids, u64
    place: array[int]  #: place of the record with its state, as given to `put`; i64
    last_sent: array[int]  #: highest sequence that was sent, u64
    flags: array[int]  #: bits of `layout.SubFlag`, u8
    first: array[int]  #: index in `pending` of the first sequence of each row, and the end of the last row; i64
    pending: array[int]  #: sequences that were sent and not acknowledged, u64, ascending within each row

class Fold:
    """The subscriptions of a channel while their log is read."""

    records: int  #: New, Update and Msg records of known ids, as the server counts them for its compaction
    dead: int  #: the part of `records` that a compaction would remove, as the server counts it
    max_id: int  #: highest id ever used

    def __init__(self) -> None: ...
    def apply(self, buffer: Buffer, batch: LogColumns, row: int) -> int:
        """Applies the records of a batch, which have a right CRC, from a row on.

        Returns the first row that it leaves to the caller: one that is neither a Msg nor an Ack record, nor a New,
        Update or Delete record as the server writes it. The number of rows if there is none.
        """
    def put(self, kind: int, number: int, last_sent: int, place: int, flags: int) -> None:
        """Applies a New or Update record; `finish` returns `place` and `flags`."""
    def delete(self, number: int) -> None: ...
    def flow(self, kind: int, number: int, sequence: int) -> None: ...
    def last_sent(self, number: int) -> int:
        """Returns the highest sequence that was sent to a subscription, -1 for an unknown id."""
    def finish(self) -> Folded:
        """Returns the result. The fold must not be used afterwards."""
