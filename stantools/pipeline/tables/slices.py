"""The table of slices: what each holds, told from its index where that can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.inspection.slicesummary import summarise
from stantools.pipeline.tables.parts import LocalPart, Row, int64, microseconds, text
from stantools.pipeline.tables.text import plain_text, raw_name
from stantools.store.directory import SLICE_NAME, SliceFiles, slice_number


def rows(here: LocalPart) -> Iterator[Row]:
    """Gives the row of one slice; never raises for what is in its files."""
    part = here.part
    assert part.channel is not None
    files = slice_files(here.file)
    summary = summarise(files, raw_name(part.channel), here.crc)
    filled = summary.count > 0
    yield {
        "store": here.store,
        "channel": text(part.channel),
        "slice": text(part.file),
        "number": files.number,
        "archived": files.archived,
        "first_seq": int64(summary.first_seq) if filled else None,
        "last_seq": int64(summary.last_seq) if filled else None,
        "first_timestamp": microseconds(summary.first_timestamp) if filled else None,
        "last_timestamp": microseconds(summary.last_timestamp) if filled else None,
        "messages": summary.count,
        "bytes": summary.bytes,
        "data_size": files.data_size,
        "index_size": files.index_size,
        "source": summary.source.value,
        "encrypted": summary.encrypted,
        "problems": [plain_text(problem) for problem in summary.problems],
    }


def slice_files(data: Path) -> SliceFiles:
    """Returns the files of a slice by the path of its data file.

    Raises:
        StoreUnreadableError: The name is not that of a slice.
    """
    match = SLICE_NAME.fullmatch(data.name)
    number = slice_number(match[1]) if match else None
    if match is None or number is None:
        raise StoreUnreadableError(f"{data}: is not a message slice", "name a file msgs.N.dat or msgs.N.dat.bak")
    index = data.with_name(f"msgs.{number}.idx{match[2] or ''}")
    return SliceFiles(number, data, index if index.exists() else None, match[2] is not None, _size(data), _size(index))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
