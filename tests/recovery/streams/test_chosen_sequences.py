"""Which files gave sequences that another file has as well, without a look at every file."""

from __future__ import annotations

from stantools.recovery.streams.record_files import ChosenRecords, MadeRecords
from stantools.recovery.streams.stream_plan import _SeenSequences
from stantools.store.ranges import Ranges


def test_the_files_that_gave_some_sequences() -> None:
    chosen = ChosenRecords()
    seen = _SeenSequences(chosen)
    parts = [[(40, 49)], [(1, 9)], [(10, 12), (30, 39)], [(13, 29)], [(60, 60)]]
    for number, pairs in enumerate(parts):
        seen.add(MadeRecords(str(number), []), Ranges.of(pairs))
    for first in range(1, 62):
        for last in (first, first + 1, first + 25):
            wanted = Ranges.of([(first, last)])
            expected = [(str(n), both) for n, pairs in enumerate(parts) if (both := Ranges.of(pairs) & wanted)]
            assert [(records.file, both) for records, both in seen.files(wanted)] == expected
    assert len(chosen.parts) == len(parts)
