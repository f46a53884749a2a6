"""Ranges of pending messages, queue groups, clients that only subscriptions know, and what a damaged log costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.browse.log_history import log_loss
from stantools.inspection.overview import ClientList, ClientStatus, overview
from stantools.inspection.records import FileKind
from stantools.inspection.subscribers import as_ranges, first_ranges, queue_groups
from stantools.store.read_options import open_store
from tests.cli.expected import healthy_cases, renamed
from tests.conftest import cases_by_kind, load_expected


@given(st.sets(st.integers(1, 120)), st.integers(0, 40))
def test_the_first_ranges_are_the_first_of_all_ranges(found: set[int], most: int) -> None:
    sequences = sorted(found)
    assert first_ranges(sequences, most) == as_ranges(sequences)[:most]


@pytest.mark.parametrize("case", cases_by_kind(healthy_cases()))
def test_groups_and_clients_of_golden_stores(case: str, golden: Path) -> None:
    expected = load_expected(case)
    store = open_store(golden / case / "datastore")
    result = overview(store)
    clients = ClientList(result.clients)
    for channel in result.channels:
        clients.add(channel)
        theirs = [renamed(each) for each in expected["channels"].get(channel.name, {}).get("subscriptions", [])]
        groups: dict[tuple[str, bool], list[dict[str, object]]] = {}
        for each in theirs:
            if each["q_group"]:
                groups.setdefault((each["q_group"], each["is_durable"]), []).append(each)
        ours = queue_groups(channel.subscriptions)
        assert {(each.name, each.durable) for each in ours} == groups.keys()
        for each in ours:
            members = groups[each.name, each.durable]
            assert [member.state.id for member in each.members] == [member["id"] for member in members]
            assert each.last_sent == max(member["last_sent"] for member in members)  # type: ignore[type-var]
            assert each.pending == sum(len(member["pending"]) for member in members)  # type: ignore[arg-type]
            assert each.lag == max(channel.last_seq - each.last_sent, 0)
    registered = [each for each in clients.clients() if each.status is ClientStatus.REGISTERED]
    assert sorted(each.id.decode() for each in registered) == sorted(each["ID"] for each in expected["clients"])
    owned = sum(len(each["subscriptions"]) for each in expected["channels"].values())
    nobody = sum(not sub["ClientID"] for each in expected["channels"].values() for sub in each["subscriptions"])
    assert sum(each.subscriptions for each in clients.clients()) == owned - nobody


def test_clients_that_are_not_registered(golden: Path) -> None:
    store = open_store(golden / "dmg_clients_missing" / "datastore")
    result = overview(store)
    clients = ClientList(result.clients)
    for channel in result.channels:
        clients.add(channel)
    assert {each.id: each.status.value for each in clients.clients()} == {
        b"w-2": "ghost",
        b"w-3": "ghost",
        b"w-4": "away",
    }


@pytest.mark.parametrize(
    ("case", "file", "read", "found"),
    [
        ("dmg_subs_payload_flip", "alpha/subs.dat", (2, 20), (4, 40)),
        ("dmg_subs_cut_header", "alpha/subs.dat", None, None),
        ("dmg_unknown_type_subs", "alpha/subs.dat", None, None),
        ("dmg_clients_payload_flip", "clients.dat", (1, 1), (1, 5)),
        ("dmg_version_255_clients", "clients.dat", None, None),
        ("durables", "events/subs.dat", None, None),
        ("durables", "clients.dat", None, None),
    ],
)
def test_what_a_damaged_log_costs(
    case: str, file: str, read: tuple[int, int] | None, found: tuple[int, int] | None, golden: Path
) -> None:
    store = open_store(golden / case / "datastore")
    crc = store.crc
    kind = FileKind.CLIENTS if file == "clients.dat" else FileKind.SUBS
    loss = log_loss(store.path / file, kind, crc)
    if not case.startswith("dmg_"):
        assert loss is None
        return
    assert loss is not None
    assert loss.size == (store.path / file).stat().st_size
    assert loss.offset < loss.size
    assert loss.read_records <= loss.found_records
    assert loss.damages >= 1
    if read is not None:
        assert (loss.read, loss.read_records) == read
        assert (loss.found, loss.found_records) == found
