"""Salvage of directories that real servers wrote: everything intact is kept, nothing is invented, servers open it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.recovery.streams.salvaged import Salvage, check_notes, check_server, ranges, salvage
from tests.streamfiles.test_golden_streams import cases, digest, folder, load

pytestmark = pytest.mark.golden
VERSIONS = [each for each in ("2.10.26", "2.12.8", "2.15.1") if each in servers.available()]
#: one of so many directories in a normal run
SHARES = pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
#: a few of each kind, for the normal run
SAMPLE = (
    "ok_consumers15", "ok_edges10", "dmg_flip_slen_noidx", "dmg_blocks_swapped", "dmg_meta_inf_flip",
    "dmg_missing_last_noidx", "dmg_cons_dat_ahead", "left_purged_but_moved", "s2_flip_block", "enc_flip_block",
)  # fmt: skip


@cache
def salvaged(place: Path, case: str) -> Salvage:
    expected = load(case)
    settings = (expected.get("written_with") or expected["server_settings"])["jetstream"]
    return salvage(folder() / case / "store", place / case, settings.get("key"))


def salvages(place: Path, names: Iterable[str]) -> dict[str, Salvage]:
    return {case: salvaged(place, case) for case in names}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("salvages")


def truths(case: str) -> dict[str, Any]:
    """The truth of each stream, by its name in the damaged directory."""
    found = {}
    for name, truth in load(case)["truth"].items():
        account = name.split("/", 1)[0]
        for each in truth.get("found_in", {}):
            account = Path(each).parts[-4] if len(Path(each).parts) > 4 else account
        found[f"{account}/{name.split('/', 1)[1]}"] = truth
    return found


def check(case: str, done: Salvage) -> None:
    check_notes(case, done)
    wanted = truths(case)
    assert {each.full_name for each in done.plan.streams} == set(wanted), case
    for stream in done.plan.streams:
        truth = wanted[stream.full_name]
        intact, live = ranges(truth["intact_on_disk"]), ranges(truth["live"]["ranges"])
        assert not intact - stream.recovered, (case, stream.full_name)
        assert digest(done.contents(stream), intact) == truth["intact_digest"], (case, stream.full_name)
        # what came back is named as such
        assert not stream.recovered - live - stream.resurrected, (case, stream.full_name)
        assert not stream.lost & stream.recovered
        document = stream.as_json()
        assert sum(document["sources"].values()) == document["messages"] == stream.recovered.count()


@SHARES
def test_healthy_directories_are_kept_whole(place: Path, every: int) -> None:
    for case, done in salvages(place, cases("healthy")[::every]).items():
        check(case, done)
        for stream in done.plan.streams:
            assert not stream.resurrected and not stream.lost, (case, stream.full_name)
            truth = truths(case)[stream.full_name]
            assert stream.last == truth["live"]["last_seq"]
            states = {each.name: each.state for each in stream.consumers}
            assert states.keys() == truth["consumers"].keys()
            for name, wanted in truth["consumers"].items():
                state = states[name]
                assert (state is None) == (wanted is None)
                if state:
                    for pair, key in ((state.delivered, "delivered"), (state.ack_floor, "ack_floor")):
                        assert list(pair) == [wanted[key]["consumer"], wanted[key]["stream"]], (case, name)


@SHARES
def test_damaged_directories_give_all_that_is_intact(place: Path, every: int) -> None:
    for case, done in salvages(place, cases("damaged")[::every]).items():
        check(case, done)


@pytest.mark.parametrize("version", VERSIONS)
def test_servers_open_a_sample(version: str, place: Path, tmp_path: Path) -> None:
    check_server(version, salvages(place, SAMPLE), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_servers_open_every_case(version: str, place: Path, tmp_path: Path) -> None:
    check_server(version, salvages(place, cases("healthy") + cases("damaged")), tmp_path)
