"""csv and ndjson of messages without pyarrow: the same bytes, of every golden store."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stantools.store.sample import SampleOptions, write_sample
from tests.conftest import KINDS_OF_STORES
from tests.pipeline.export import everyexport


@pytest.fixture(scope="module")
def exports(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """What was exported with pyarrow and without."""
    place = tmp_path_factory.mktemp("exports")
    write_sample(place / "sample", SampleOptions(messages=800, damage=["flipped-length", "flipped-byte"]))
    stores = [str(golden / case / "datastore") for case in sorted(KINDS_OF_STORES)[1::3]]
    running = [
        subprocess.Popen([sys.executable, everyexport.__file__, way, place / way, place / "sample", *stores])
        for way in ("with", "without")
    ]
    assert [each.wait(240) for each in running] == [0, 0]
    yield place / "with", place / "without"


def files(place: Path) -> dict[str, bytes]:
    """The text of each file, unpacked."""
    found = {
        os.fspath(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and not path.name.startswith("_")
    }
    return {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in found.items()}


def test_messages_of_golden_stores_are_the_same(exports: tuple[Path, Path]) -> None:
    first, second = map(files, exports)
    assert list(first) == list(second) and len(first) > 2 * 4 + 10
    assert not [name for name in first if first[name] != second[name]]
    packed = [name for name in first if name.endswith(".gz")]
    assert len(packed) == 4 and all(first[name] == first[name.removesuffix(".gz")] for name in packed)
    assert b",sealed\n" in first["messages-opened.csv"] and b",sealed\n" not in first["messages.csv"]
    assert b",ok\n" in first["messages.csv"] and b",repaired\n" in first["messages.csv"]
