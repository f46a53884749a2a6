"""Streams of many small blocks: the memory for each block, of every verb that reads them."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stantools.inspection.stream_forecast.directory_forecast import forecast_directory
from stantools.inspection.stream_forecast.versions import SERVER_RULES
from stantools.recovery.recovery_options import StreamSalvageOptions
from stantools.recovery.streams.stream_plan import plan_stream_salvage
from stantools.sources.door import open_source
from stantools.streamfiles import highwayhash, kernels
from stantools.streamfiles.indexes import BlockEntry, StreamEntry, encode_index
from stantools.streamfiles.meta import meta_sum
from stantools.streamfiles.subjects import SubjectCounts
from stantools.streamfiles.survey import StreamSurvey

NAME, SUBJECT, PAYLOAD, TIME = "BIG", b"s.a", b"x" * 50, 10**18
CONFIG = {"name": NAME, "subjects": ["s.>"], "retention": "limits", "storage": "file", "num_replicas": 1}
FEW, MANY = 200, 1200


def make(place: Path, count: int, *, indexed: bool) -> Path:
    """Writes a stream of `count` blocks with two messages each."""
    folder = place / "jetstream/$G/streams" / NAME
    (folder / "msgs").mkdir(parents=True)
    data = json.dumps(CONFIG).encode()
    stream_key = highwayhash.stream_key(NAME)
    (folder / "meta.inf").write_bytes(data)
    (folder / "meta.sum").write_bytes(meta_sum(data, stream_key))
    entries = []
    for number in range(1, count + 1):
        key, first = highwayhash.block_key(NAME, number), 2 * number - 1
        block = b"".join(kernels.encode_record(each, TIME, SUBJECT, b"", PAYLOAD, key) for each in (first, first + 1))
        (folder / f"msgs/{number}.blk").write_bytes(block)
        entries.append(BlockEntry(number, len(block), first, TIME, first + 1, TIME, np.zeros(0, np.int64), 0))
    if indexed:
        total = StreamEntry(2 * count, count * len(block), 1, TIME, 2 * count, TIME)
        subjects = [(SUBJECT, 2 * count, 1, count)]
        (folder / "msgs/index.db").write_bytes(encode_index(total, subjects, entries, block[-8:], stream_key))
    return place


def taken(work: Callable[[], object]) -> int:
    """Returns the most bytes that some work takes."""
    gc.collect()
    # The more objects earlier tests have left, the longer the garbage of this one would stay.
    gc.freeze()
    gc.collect()
    tracemalloc.start()
    try:
        assert work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def surveyed(place: Path) -> object:
    survey = StreamSurvey(open_source(place).streams[0])
    assert not survey.damaged and not survey.missing
    return survey


def doctored(place: Path) -> object:
    source = open_source(place)
    surveys = [StreamSurvey(each) for each in source.streams]
    forecast = forecast_directory(source.streams, source.place, SERVER_RULES["2.15"], survey=lambda _: surveys[0])
    assert forecast.streams[f"$G/{NAME}"].loss.harmless
    return forecast


def salvaged(place: Path) -> object:
    plan = plan_stream_salvage(open_source(place), StreamSalvageOptions())
    assert not plan.lossy
    return plan


@pytest.mark.parametrize(
    ("work", "limit", "indexed"),
    [
        pytest.param(work, limit, indexed, marks=() if (work is doctored) == indexed else pytest.mark.slow)
        for work, limit in ((surveyed, 1800), (doctored, 3100), (salvaged, 2200))
        for indexed in (True, False)
    ],
)
def test_memory_for_a_block(work: Callable[[Path], object], limit: int, indexed: bool, tmp_path: Path) -> None:
    few, many = (make(tmp_path / str(count), count, indexed=indexed) for count in (FEW, MANY))
    work(few)  # loads what is loaded once
    each = (taken(lambda: work(many)) - taken(lambda: work(few))) / (MANY - FEW)
    assert each < limit


def test_memory_for_a_subject_that_every_block_has() -> None:
    def counted() -> object:
        counts = SubjectCounts()
        for _ in range(20_000):
            counts.add(np.ones(2, np.uint64))
        return counts

    assert taken(counted) < 3 << 20
