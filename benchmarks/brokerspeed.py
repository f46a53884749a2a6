"""How fast the broker is, against fixed figures of the original server and real NATS servers in the same run.

    python benchmarks/brokerspeed.py [--only SECTION] [--update] [--data PLACE] [--count N] [--rounds N]

Sections: broker-publish (raw publishes, many under way), broker-clients (one at a time, of few and of many clients,
with an innocent one beside them), broker-growth (1 to 5,000 connections, 1 to 10,000 channels), broker-delivery,
broker-core (plain NATS against real servers), broker-jetstream (file streams of real servers under the same load),
broker-streams (streams of the broker against those of a real server), broker-start (until clients can connect),
broker-innocent (the longest wait of one client while another does its worst), broker-requests (the same during requests
that look at much, beside a real server), broker-process (start and memory).

All ways of a table run in turn, round after round, each with a fresh server and a load generator of its own process on
the same cores; figures are medians, with the lowest and the highest rate behind them. `others` says how many cores were
busy with something else. --update writes the tables into RESULTS.md.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from brokerruns import Options
from brokertables import SECTIONS
from report import report


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="speed and memory of the broker")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="only this section; may be repeated")
    parser.add_argument("--update", action="store_true", help="put the tables into RESULTS.md")
    parser.add_argument("--data", type=Path, help="where to write the data; default: a temporary directory")
    parser.add_argument("--count", type=int, default=1_000_000, help="messages of 128 bytes")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    wanted = given.only or list(SECTIONS)
    for name in wanted:
        with tempfile.TemporaryDirectory(dir=given.data, prefix="bench-") as place:
            options = Options(Path(place), given.count, given.rounds)
            report(name, partial(SECTIONS[name], options), options.rounds, update=given.update)


if __name__ == "__main__":
    main()
