"""Salvage after many small damages of one store: all that is intact, nothing else unless it is named as in doubt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.survey import StreamSurvey
from tests import servers
from tests.mutations import apply_mutation
from tests.recovery.streams.salvaged import Salvage, check_server, ranges, salvage
from tests.streamfiles.test_golden_streams import contents, folder, load, stream_path

pytestmark = pytest.mark.golden
CASES = ("systematic_10", "systematic_multi_15")
VERSIONS = [each for each in ("2.10.26", "2.12.8", "2.15.1") if each in servers.available()]


def salvaged(case: str, mutation: dict[str, Any], place: Path) -> Salvage:
    copy = place / f"{mutation['id']}.damaged"
    shutil.copytree(folder() / case / "store", copy)
    apply_mutation(copy, mutation)
    try:
        return salvage(copy, place / f"{mutation['id']}.new")
    finally:
        shutil.rmtree(copy)


def check(case: str, tmp_path: Path, step: int) -> dict[str, Salvage]:
    expected = load(case)
    name = next(iter(expected["live"])) if "ranges" not in expected["live"] else expected["stream"]
    survey = StreamSurvey(StoredStream(stream_path(folder() / case / "store", name), "$G"))
    undamaged, live = contents(survey), survey.intact
    found = {}
    for mutation in expected["mutations"][::step]:
        done = found[str(mutation["id"])] = salvaged(case, mutation, tmp_path)
        stream = next(each for each in done.plan.streams if each.name == name.split("/")[-1])
        assert not ranges(mutation["intact"]) - stream.recovered, mutation
        assert not stream.recovered - live - stream.resurrected, (mutation, stream.recovered - live)
        for sequence, content in done.contents(stream).items():
            assert content == undamaged.get(sequence, content), mutation
    return found


@pytest.mark.parametrize("case", CASES)
def test_some_mutations(case: str, tmp_path: Path) -> None:
    check(case, tmp_path, 47)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_servers_open_all_mutations(case: str, tmp_path: Path) -> None:
    found = check(case, tmp_path, 1)
    for version in VERSIONS:
        check_server(version, found, tmp_path / version)
