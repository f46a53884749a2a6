"""Folded logs of all golden stores and mutations, as the real server recovered them and as salvage sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES, encode
from stantools.store.clientlog import ClientsState, read_clients, salvage_clients
from stantools.store.logrepair import CLIENTS_LOG, SUBS_LOG, LogLayout
from stantools.store.logscan import LogDamage, LogEntry, history
from stantools.store.sublog import SubsState, read_subs, salvage_subs
from tests.conftest import GOLDEN, KINDS_OF_STORES, cases_by_kind, golden_cases, load_expected, others_slow
from tests.envelopes import Records
from tests.store.golden_logs import (
    clients_json,
    crc_of,
    logs,
    mutate,
    mutations,
    read,
    stores,
    subscription_json,
    subscriptions_json,
)

Fact = dict[str, Any]


def layout_of(path: Path) -> LogLayout:
    return CLIENTS_LOG if path.name == "clients.dat" else SUBS_LOG


def fold(path: Path, data: bytes | None, crc: Crc) -> ClientsState | SubsState:
    """Folds a log as the server does; a missing file is created empty."""
    buffer = memoryview(FILE_HEADER_BYTES if data is None else data)
    return read_clients(buffer, crc) if path.name == "clients.dat" else read_subs(buffer, crc)


def as_json(state: ClientsState | SubsState) -> list[Fact]:
    return clients_json(state) if isinstance(state, ClientsState) else subscriptions_json(state)


def same_clients(state: ClientsState | SubsState, wanted: list[Any]) -> bool:
    """Compares with golden's facts, which are ids only for damaged stores."""
    facts: list[Any] = as_json(state)
    if wanted and isinstance(wanted[0], str):
        facts = [client["ID"] for client in facts]
    return facts == wanted


def server_error(path: Path, state: ClientsState | SubsState) -> str:
    assert state.end is not None
    if not state.end.error:
        return ""
    if path.name == "clients.dat":
        name = '"clients.dat"' if state.end.stop is None else '"<store>/clients.dat"'
        return f"unable to recover client file {name}: {state.end.error}"
    return f"unable to recover subscription store for [{path.parent.name}]: {state.end.error}"


@pytest.mark.parametrize("case", others_slow(stores(), KINDS_OF_STORES))
def test_records_re_serialise_to_the_same_bytes(case: str) -> None:
    crc = crc_of(case)
    for path in logs(case, "clients.dat") + logs(case, "subs.dat"):
        data, layout = path.read_bytes(), layout_of(path)
        for record in Records(data, 4, len(data), typed=True, crc=crc):
            assert record.type is not None
            if record.type not in layout.messages:
                assert case.startswith("dmg_unknown_type")
                continue
            message = gogo.decode(layout.messages[record.type], record.payload)
            assert encode(message.SerializeToString(), crc, record.type) == data[record.offset : record.end]


@pytest.mark.parametrize("case", cases_by_kind())
def test_recovered_state(case: str) -> None:
    """What the server recovers, and why it does not, for every store as it is and with the truncate option."""
    expected, root, crc = load_expected(case), GOLDEN / case / "datastore", crc_of(case)
    opens = [(False, expected["server_open"]), (True, expected.get("server_open_truncate"))]
    paths = [root / "clients.dat", *logs(case, "subs.dat")]
    for truncate, opened in opens:
        if opened is None or opened.get("recovered") is False:
            # Version 0.23.2 takes a store without server information for empty.
            continue
        error = opened.get("error") or ""
        # Facts of a healthy store are outside of server_open.
        facts = opened if "channels" in opened else expected
        errors = []
        for path in paths:
            data = path.read_bytes() if path.exists() else None
            state = fold(path, data, crc)
            assert state.end is not None
            if truncate and state.end.torn:
                assert data is not None
                state = fold(path, data[: state.end.offset], crc)
            assert state.end is not None
            errors.append(server_error(path, state))
            if not opened["started"]:
                continue
            if path.name == "clients.dat":
                assert same_clients(state, facts["clients"])
            elif path.parent.name in facts["channels"]:
                assert as_json(state) == facts["channels"][path.parent.name]["subscriptions"]
            changed = opened["files_changed_by_recovery"].get(str(path.relative_to(root)))
            if data is not None:
                size = fold(path, data, crc).end.size_after(truncate=truncate)  # type: ignore[union-attr]
                assert size == (changed["size_after"] if changed else len(data))
        if any(errors):
            assert error in errors
        else:
            assert "client file" not in error or "permission denied" in error
            assert "subscription store" not in error


@pytest.mark.golden
def test_recovered_state_of_mutations() -> None:
    seen = 0
    for case, mutation, path in mutations("clients.dat", "subs.dat"):
        expected = load_expected(case)
        data = mutate(path.read_bytes(), mutation)
        for key, truncate in (("server_open", False), ("server_open_truncate", True)):
            outcome = expected["outcomes"][mutation[key]]
            state = fold(path, data, Crc())
            assert state.end is not None
            size = None if data is None else state.end.size_after(truncate=truncate)
            if truncate and state.end.torn:
                assert data is not None
                state = fold(path, data[: state.end.offset], Crc())
            error = server_error(path, state)
            assert outcome["started"] == (not error), mutation
            if error:
                assert outcome["log"][-1] == f"[FTL] STREAM: Failed to start: {error}", mutation
            else:
                base = expected["base"]
                if path.name == "clients.dat":
                    wanted = base["clients"] if outcome["clients"] == "same" else outcome["clients"]
                    assert same_clients(state, wanted), mutation
                else:
                    channel = path.parent.name
                    changed = outcome["subscriptions"]
                    wanted = "same" if changed == "same" else changed[channel]
                    if wanted == "same":
                        wanted = base["channels"][channel]["subscriptions"]
                    assert as_json(state) == wanted, mutation
            before_after = outcome["files_changed"].get(mutation["file"])
            if data is not None:
                assert size == (before_after[1] if before_after else len(data)), mutation
            seen += 1
    assert seen > 200


def check_salvage(
    path: Path, original: bytes, data: bytes, damaged: set[int], crc: Crc
) -> tuple[ClientsState | SubsState, ClientsState | SubsState]:
    """Checks that every intact record is found, that repairs are right, and that nothing is left out.

    Returns:
        What the server makes of the intact records alone, and what was salvaged.
    """
    layout = layout_of(path)
    wanted = list(Records(original, 4, len(original), typed=True, crc=crc))
    parts = list(history(memoryview(data), layout, crc))
    entries = {part.offset: part for part in parts if isinstance(part, LogEntry)}
    intact = [record for index, record in enumerate(wanted) if index not in damaged]
    for record in intact:
        entry = entries[record.offset]
        assert entry.type == record.type
        assert entry.message.SerializeToString() == record.payload
    assert len(entries) == len(intact)
    salvage = salvage_clients if layout is CLIENTS_LOG else salvage_subs
    repaired = salvage(memoryview(data), crc)
    assert repaired.rows == len(intact)
    assert [d.offset for d in repaired.damages] == [p.offset for p in parts if isinstance(p, LogDamage)]
    originals = {record.offset: record for record in wanted}
    proven = set()
    for damage in repaired.damages:
        if damage.repaired:
            record = originals[damage.offset]
            proven.add(record.offset)
            assert damage.message is not None
            assert (damage.type, damage.message.SerializeToString()) == (record.type, record.payload)
    at = 0 if data[:4] != FILE_HEADER_BYTES else min(len(data), 4)
    for part in parts:
        assert part.offset == at
        at = part.end if isinstance(part, LogDamage) else at + 8 + part.size
    assert at == len(data)

    def of(records: list[Any]) -> ClientsState | SubsState:
        """Returns what the server makes of a file with only these records."""
        return fold(path, FILE_HEADER_BYTES + b"".join(bytes(original[r.offset : r.end]) for r in records), crc)

    known = {record.offset for record in intact} | proven
    assert as_json(repaired) == as_json(of([record for record in wanted if record.offset in known]))
    return of(intact), repaired


@pytest.mark.golden
def test_salvage_of_mutations() -> None:
    repairs = 0
    for case, mutation, path in mutations("clients.dat", "subs.dat"):
        del case
        original = path.read_bytes()
        data = mutate(original, mutation)
        if data is None:
            continue
        facts = mutation.get("salvage", {})
        if path.name == "clients.dat":
            damaged = set(facts.get("clients_damaged_records", []))
        else:
            damaged = set(facts.get("subs_damaged_records", {}).get(path.parent.name, []))
        _, repaired = check_salvage(path, original, data, damaged, Crc())
        repairs += sum(damage.repaired for damage in repaired.damages)
    assert repairs > 3


def damaged_cases() -> list[str]:
    return [case for case in golden_cases() if "salvage" in load_expected(case)]


@pytest.mark.parametrize("case", cases_by_kind(damaged_cases()))
def test_salvage_of_golden_stores(case: str) -> None:
    expected, crc = load_expected(case), crc_of(case)
    root, base = GOLDEN / case / "datastore", GOLDEN / "damage_base" / "datastore"
    facts = expected["salvage"]
    files = [("clients.dat", facts["clients"])]
    files += [(f"{channel}/subs.dat", fact) for channel, fact in facts["subs"].items()]
    for name, fact in files:
        path = root / name
        if not path.exists():
            assert fact["intact"] == 0
            continue
        data = path.read_bytes()
        if "unknown_type" in case and data != (base / name).read_bytes():
            check_unknown_type(path, (base / name).read_bytes(), data, crc)
            continue
        damaged = {item["index"] for item in fact.get("damaged", [])}
        plain, _ = check_salvage(path, (base / name).read_bytes(), data, damaged, crc)
        assert plain.rows == fact["intact"]
        if "state_from_intact_records" in fact:
            assert same_clients(plain, fact["state_from_intact_records"])


def check_unknown_type(path: Path, original: bytes, data: bytes, crc: Crc) -> None:
    """A record of unknown type stands between the good ones: it is reported and changes nothing."""
    salvage = salvage_clients if path.name == "clients.dat" else salvage_subs
    state = salvage(memoryview(data), crc)
    assert state.rows == fold(path, original, crc).rows
    assert as_json(state) == as_json(fold(path, original, crc))
    assert sum(damage.length for damage in state.damages) == len(data) - len(original)


def test_pending_is_not_part_of_the_stored_state(golden: Path) -> None:
    state = read_subs(read(golden / "damage_base" / "datastore" / "alpha" / "subs.dat"), Crc())
    assert "pending" not in subscription_json(state.subscriptions[1].state)
    assert state.subscriptions[1].pending
