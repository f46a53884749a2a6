"""Writes the sample stores in this directory again: `make samples`. A test fails when they are not what this writes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from stantools.secret import Secret
from stantools.store.sample import SampleOptions, write_sample

HERE = Path(__file__).parent

#: Directory -> what is written there. The README says what each is for.
SAMPLES = {
    "healthy": SampleOptions(messages=24, size=48),
    "gaps": SampleOptions(channels=2, messages=24, size=48, gaps=True, seed=2),
    "encrypted": SampleOptions(channels=1, messages=12, size=48, encryption_key=Secret(b"sample key"), seed=3),
    "castagnoli": SampleOptions(channels=1, messages=12, size=48, polynomial=0x82F63B78, seed=4),
    "torn": SampleOptions(messages=24, size=48, damage=("cut-payload", "cut-header", "cut-subs")),
    "flipped": SampleOptions(messages=24, size=48, damage=("flipped-byte", "flipped-length", "damaged-clients")),
    "lost": SampleOptions(messages=24, size=48, damage=("lost-slice", "lost-subs", "lost-clients", "leftovers")),
    "restarted": SampleOptions(channels=1, messages=24, size=48, damage=("sequence-restart",)),
}


def write(directory: Path) -> None:
    """Writes all samples into a directory, in place of those that are there."""
    for name, options in SAMPLES.items():
        target = directory / name
        shutil.rmtree(target, ignore_errors=True)
        sample = write_sample(target, options)
        sys.stdout.write(f"wrote {target.name}: {sample.messages} messages, {len(sample.damages)} damages\n")


if __name__ == "__main__":
    write(HERE)
