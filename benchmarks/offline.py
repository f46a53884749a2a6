"""How fast the offline verbs are and what memory they take, as ratios to the limits of the machine.

    python benchmarks/offline.py [--only SECTION] [--large] [--update] [--data PLACE] ...

Sections: reading (verify, forecast, info), writing (salvage, compact, truncate), growth (slices, channels), memory
(a store of 10 GB; only with --large), durables (a channel of many), raftlog (of a clustered node), databases (SQL
stores, beside the databases' own programs), starting. All ways of a table are run in turn, round after round, with the
files read anew before each measurement; figures are medians. Whole commands whose memory is measured run once.
`others` says how many cores were busy with something else: where it is not near 0, look at the processor time.
--update writes the tables into RESULTS.md.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import databases
import growth
import memory
import reading
import starting
import writing
from measure import Options
from report import report

_SECTIONS = {
    "reading": reading.section,
    "writing": writing.section,
    "growth": growth.section,
    "starting": starting.section,
    "memory": memory.section,
    "durables": memory.durables,
    "raftlog": memory.raft_logs,
    "databases": databases.section,
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="speed and memory of the offline verbs")
    parser.add_argument("--only", action="append", choices=_SECTIONS, help="only this section; may be repeated")
    parser.add_argument("--large", action="store_true", help="also measure memory with a store of 10 GB")
    parser.add_argument("--update", action="store_true", help="put the tables into RESULTS.md")
    parser.add_argument("--data", type=Path, help="where to write the data; default: a temporary directory")
    parser.add_argument("--small-messages", type=int, default=4_000_000, help="messages of 128 bytes")
    parser.add_argument("--large-messages", type=int, default=700_000, help="messages of 1 KiB")
    parser.add_argument("--channels", type=int, default=10_000, help="the most channels in the table of growth")
    parser.add_argument("--large-bytes", type=int, default=10_000_000_000, help="size of the store of --large")
    parser.add_argument("--durables", type=int, default=1_500_000, help="durables of the store of that section")
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages of the SQL stores")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    wanted = given.only or [name for name in _SECTIONS if given.large or name != "memory"]
    with tempfile.TemporaryDirectory(dir=given.data, prefix="bench-") as place:
        options = Options(
            Path(place),
            given.small_messages,
            given.large_messages,
            given.rounds,
            given.channels,
            given.large_bytes,
            given.durables,
            given.rows,
        )
        for name in wanted:
            report(name, partial(_SECTIONS[name], options), options.rounds, update=given.update)


if __name__ == "__main__":
    main()
