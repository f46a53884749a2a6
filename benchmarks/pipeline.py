"""How fast export and the pipeline on Spark are, and what memory they take, as ratios to the local verify.

    python benchmarks/pipeline.py [--quick] [--only SECTION] [--update] [--data PLACE] ...

Sections: export (files without Spark), spark-start (until the first answer), spark (queries and jobs, with the memory
of their workers), spark-cores (one and two), spark-sizes (1 to 8 GB; takes 12 GB of disk), spark-channels (10 to
10,000), spark-pruning (asking for a part). Spark runs in processes of its own; all ways of a table take turns, round
after round, with the files read anew before each measurement; figures are medians. `others` says how many cores were
busy with something else. --quick takes a tenth of the data. --update writes the tables into RESULTS.md.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import exporting
import sparkpruning
import sparkreading
import sparkscaling
from measure import Options
from report import report
from sparkdrivers import Drivers

_SECTIONS: dict[str, Callable[[Options, Drivers], str]] = {
    "export": lambda options, _: exporting.section(options),
    "spark-start": sparkreading.starting,
    "spark": sparkreading.section,
    "spark-cores": sparkscaling.cores,
    "spark-sizes": sparkscaling.sizes,
    "spark-channels": sparkscaling.channels,
    "spark-pruning": sparkpruning.section,
}
_FULL = Options(Path(), 3_000_000, 500_000, 3, 10_000, 8_000_000_000)
_QUICK = Options(Path(), 600_000, 100_000, 3, 1000, 400_000_000)
#: Sizes of the largest store that fit into the page cache and onto the disk, with what is written beside it.
_ROOM = 1.8


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="speed and memory of export and of the pipeline on Spark")
    parser.add_argument("--only", action="append", choices=_SECTIONS, help="only this section; may be repeated")
    parser.add_argument("--quick", action="store_true", help="200 MB and 1000 channels; a few minutes")
    parser.add_argument("--update", action="store_true", help="put the tables into RESULTS.md")
    parser.add_argument("--data", type=Path, help="where to write the data; default: a temporary directory")
    parser.add_argument("--small-messages", type=int, help="messages of 128 bytes")
    parser.add_argument("--large-messages", type=int, help="messages of 1 KiB")
    parser.add_argument("--channels", type=int, help="the most channels in the table of channels")
    parser.add_argument("--large-bytes", type=int, help="the largest store in the table of sizes")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    usual = _QUICK if given.quick else _FULL
    with tempfile.TemporaryDirectory(dir=given.data, prefix="bench-") as place, Drivers() as drivers:
        options = Options(
            Path(place),
            given.small_messages or usual.small,
            given.large_messages or usual.large,
            given.rounds or usual.rounds,
            given.channels or usual.channels,
            min(given.large_bytes or usual.large_bytes, int(shutil.disk_usage(place).free / _ROOM)),
        )
        for name in given.only or _SECTIONS:
            report(name, partial(_SECTIONS[name], options, drivers), options.rounds, update=given.update)


if __name__ == "__main__":
    main()
