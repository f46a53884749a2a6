"""The fold of a subs.dat (filestore.md section 4.1) in Python, which the compiled one is compared with."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING

from stantools.format.layout import SubFlag, SubRecord
from stantools.store.folding import Folded

if TYPE_CHECKING:
    from stantools.format.columns import LogColumns
    from stantools.format.envelope import Buffer

_MSG, _ACK, _MOVED = int(SubRecord.MSG), int(SubRecord.ACK), int(SubFlag.MOVED)


class Fold:
    """The subscriptions of a channel while their log is read."""

    def __init__(self) -> None:
        self.records = 0  #: new, Update and Msg records of known ids, as the server counts them for its compaction
        self.dead = 0  #: of the records those that a compaction would leave out, as the server counts them
        self.max_id = 0  #: highest id ever used
        self._rows: dict[int, tuple[int, int]] = {}  # place and flags
        self._last_sent: dict[int, int] = {}
        self._pending: dict[int, set[int]] = {}  # only of those that have any

    def apply(self, buffer: Buffer, batch: LogColumns, row: int) -> int:
        """Applies the records of a batch from a row on."""
        for kind, number, sequence in zip(batch.type[row:], batch.id[row:], batch.seq[row:], strict=True):
            if kind != _MSG and kind != _ACK:
                break
            self.flow(kind, number, sequence)
            row += 1
        return row

    def put(self, kind: int, number: int, last_sent: int, place: int, flags: int) -> None:
        """Applies a New or Update record; `place` and `flags` are given back by `finish`."""
        self.records += 1
        if kind == SubRecord.UPDATE and number in self._rows:
            self.dead += 1
        else:
            self._pending.pop(number, None)
        self._rows[number] = place, flags
        self._last_sent[number] = last_sent
        self.max_id = max(self.max_id, number)

    def delete(self, number: int) -> None:
        """Applies a Delete record."""
        self.max_id = max(self.max_id, number)
        if self._rows.pop(number, None) is not None:
            self.dead += 1 + len(self._pending.pop(number, ()))
            del self._last_sent[number]

    def flow(self, kind: int, number: int, sequence: int) -> None:
        """Applies a Msg or Ack record."""
        last_sent = self._last_sent.get(number)
        if last_sent is None:
            return
        if kind == _MSG:
            self.records += 1
            held = self._pending.get(number)
            if held is None:
                held = self._pending[number] = set()
            held.add(sequence)
            if sequence > last_sent:
                self._last_sent[number] = sequence
                place, flags = self._rows[number]
                self._rows[number] = place, flags | _MOVED
        else:
            self.dead += 1
            if held := self._pending.get(number):
                held.discard(sequence)

    def last_sent(self, number: int) -> int:
        """Returns the highest sequence that was sent to a subscription, -1 if the id is not known."""
        return self._last_sent.get(number, -1)

    def finish(self) -> Folded:
        """Returns what is left. The fold must not be used afterwards."""
        held = [sorted(self._pending.get(number, ())) for number in self._rows]
        return Folded(
            array("Q", self._rows),
            array("q", (place for place, _ in self._rows.values())),
            array("Q", self._last_sent.values()),
            array("B", (flags for _, flags in self._rows.values())),
            array("q", accumulate(map(len, held), initial=0)),
            array("Q", (sequence for each in held for sequence in each)),
        )
