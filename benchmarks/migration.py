"""How fast a migration is, as ratios to what nats-py does one message at a time, all in one run on one machine.

    python benchmarks/migration.py [--only SECTION] [--big] [--update] [--data PLACE] ...

Sections: archives (building them, and their hash), loading (every way into a stream, up to the whole command), proving
(reading back and comparing; diff of two stores), channels (many small ones), following (a running server, and the
cutover), replaying, and migration-memory (the peak of the whole command; with --big for a channel of 10 GB, taking
20 GB of disk). The server is a real one on the same cores. All ways of a table are run in turn, round after round, on a
server that is at rest; figures are medians.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import archives
import following
import loading
import manystreams
import migrationmemory
import proving
import replaying
from report import report
from streams import Options

_SECTIONS = {
    "archives": archives.section,
    "loading": loading.section,
    "proving": proving.section,
    "channels": manystreams.section,
    "following": following.section,
    "replaying": replaying.section,
    "migration-memory": migrationmemory.section,
}
_BIG = 10_000_000_000


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="speed and memory of a migration to JetStream")
    parser.add_argument("--only", action="append", choices=_SECTIONS, help="only this section; may be repeated")
    parser.add_argument("--big", action="store_true", help="also measure memory with a channel of 10 GB")
    parser.add_argument("--update", action="store_true", help="put the tables into RESULTS.md")
    parser.add_argument("--data", type=Path, help="where to write the data; default: a temporary directory")
    parser.add_argument("--small-messages", type=int, default=2_000_000, help="messages of 128 bytes")
    parser.add_argument("--large-messages", type=int, default=400_000, help="messages of 1 KiB")
    parser.add_argument("--streams", type=int, default=300, help="streams in the table of many small ones")
    parser.add_argument("--memory-bytes", type=int, default=1_000_000_000, help="size of the store without --big")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.data, prefix="bench-") as place:
        options = Options(
            Path(place),
            given.small_messages,
            given.large_messages,
            given.rounds,
            given.streams,
            (given.memory_bytes, _BIG) if given.big else (given.memory_bytes,),
        )
        for name in given.only or _SECTIONS:
            report(name, partial(_SECTIONS[name], options), options.rounds, update=given.update)


if __name__ == "__main__":
    main()
