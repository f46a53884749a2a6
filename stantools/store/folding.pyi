from array import array
from typing import NamedTuple

from stantools.format.columns import LogColumns
from stantools.format.envelope import Buffer

class Folded(NamedTuple):
    """What is left of a log: one row for each subscription, in the order in which they were made."""

    id: array[int]  #: subscription ids, u64
    place: array[int]  #: where the record with its state is, as given to `put`; i64
    last_sent: array[int]  #: highest sequence that was sent, u64
    flags: array[int]  #: bits of `layout.SubFlag`, u8
    first: array[int]  #: where the pending sequences of each row begin in `pending`, i64; one more than there are rows
    pending: array[int]  #: sequences that were sent and not acknowledged, u64, ascending within each row

class Fold:
    """The subscriptions of a channel while their log is read."""

    records: int  #: New, Update and Msg records of known ids, as the server counts them for its compaction
    dead: int  #: of the records those that a compaction would leave out, as the server counts them
    max_id: int  #: highest id ever used

    def __init__(self) -> None: ...
    def apply(self, buffer: Buffer, batch: LogColumns, row: int) -> int:
        """Applies the records of a batch from a row on.

        Args:
            buffer: The file that the batch is of.
            batch: Records with a right CRC.
            row: The first to apply.

        Returns:
            The first row that it leaves to the caller: neither a Msg nor an Ack record, nor
            a New, Update or Delete record as the server writes it. The number of rows if there is none.
        """
    def put(self, kind: int, number: int, last_sent: int, place: int, flags: int) -> None:
        """Applies a New or Update record; `place` and `flags` are given back by `finish`."""
    def delete(self, number: int) -> None:
        """Applies a Delete record."""
    def flow(self, kind: int, number: int, sequence: int) -> None:
        """Applies a Msg or Ack record."""
    def last_sent(self, number: int) -> int:
        """Returns the highest sequence that was sent to a subscription, -1 if the id is not known."""
    def finish(self) -> Folded:
        """Returns what is left. The fold must not be used afterwards."""
