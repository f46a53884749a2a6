"""The word harmless holds: where a start is called so, each intact message is delivered, once, at its sequence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.format.proto import store_pb2 as pb
from stantools.inspection.advice import Diagnosis, Health, diagnose
from stantools.inspection.forecast import forecast_both
from stantools.inspection.forecast.server_options import own_server
from stantools.inspection.outcomes import OutcomeTotals
from stantools.inspection.start_verdict import StartFlawKind, StartVerdict
from stantools.inspection.verify import verify
from stantools.recovery.recovery_options import SalvageOptions
from stantools.recovery.salvage import plan_salvage
from stantools.store.read_options import open_store
from stantools.store.sublog import SubStatus
from tests import goldenstores
from tests.conftest import MUTATION_SETS, cases_by_kind, load_expected
from tests.inspection import forecast_stores as s
from tests.mutations import apply_mutation

#: Of so many mutations one is tried in a normal run.
SHARE = 19


def diagnosed(path: Path) -> Diagnosis:
    store = open_store(path)
    return diagnose(path, verify(store, workers=1), [forecast_both(store, own_server(store, workers=1))])


def numbers(start: StartVerdict, name: str) -> list[int]:
    """What a subscriber from the first message on is sent, one by one."""
    return [n for first, last in start.forecast.channels[name].delivered for n in range(first, last + 1)]


def check(path: Path) -> Diagnosis:
    """Holds the verdict against the simulation, and the numbers of salvage against those of verify."""
    diagnosis = diagnosed(path)
    start = diagnosis.starts[0][0]
    intact = {each.name: each.intact for each in diagnosis.verified.channels if not each.foreign}
    said = start.sentence().replace("deliver every message in the store", "")
    promised = "deliver every message" in said or "a start is harmless" in diagnosis.verdict
    assert promised == start.harmless
    for flaw in start.flaws:
        if flaw.kind is StartFlawKind.AHEAD:
            assert flaw.sequences.first == start.forecast.channels[flaw.channel].last_seq + 1
    if start.delivers:
        data = {path: sizes for path, sizes in start.forecast.files_changed().items() if path.endswith(".dat")}
        assert all(after is not None and after >= (before or 0) for before, after in data.values()), data
        for name, held in intact.items():
            limited = start.limited.get(name)
            wanted = held - limited if limited else held
            assert numbers(start, name) == [n for first, last in wanted for n in range(first, last + 1)], name
            channel = start.forecast.channels[name]
            alone = channel.alone or channel.lookups
            assert not wanted - alone.readable and not alone.wrong
            for each in channel.subscriptions:
                assert each.state.last_sent <= channel.last_seq or each.status is SubStatus.ORPHAN
    if diagnosis.state is Health.HEALTHY:
        assert start.harmless and not diagnosis.totals.missing
    found = OutcomeTotals.of(diagnosis.verified.outcomes.values())
    plan = plan_salvage(open_store(path), SalvageOptions(cluster_id="test-cluster", workers=1))
    kept = plan.outcome
    assert (kept.intact, kept.archived, kept.missing) == (found.intact, found.archived, found.missing), path
    assert (kept.intact, kept.missing) == (diagnosis.totals.intact, diagnosis.totals.missing)
    return diagnosis


@pytest.mark.parametrize("case", cases_by_kind())
def test_golden_stores(case: str, golden: Path, golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy(case) if load_expected(case)["setup"] else golden / case / "datastore"
    check(path)


def _mutations(collection: str, golden: Path, work: Path, step: int) -> None:
    store = work / "store"
    shutil.copytree(golden / collection / "datastore", store, copy_function=shutil.copyfile)
    for mutation in load_expected(collection)["mutations"][::step]:
        path = store / mutation["file"]
        original = path.read_bytes()
        apply_mutation(store, mutation)
        check(store)
        path.write_bytes(original)


@pytest.mark.parametrize("collection", MUTATION_SETS)
def test_mutations(collection: str, golden: Path, tmp_path: Path) -> None:
    _mutations(collection, golden, tmp_path, SHARE)


@pytest.mark.slow
@pytest.mark.parametrize("collection", MUTATION_SETS)
def test_all_mutations(collection: str, golden: Path, tmp_path: Path) -> None:
    _mutations(collection, golden, tmp_path, 1)


def test_stores_of_clusters() -> None:
    stores = sorted(path.parent for path in (goldenstores.unpacked() / "clusters").rglob("server.dat"))
    assert len(stores) > 50
    for path in stores[::SHARE]:
        check(path)


def _durable(root: Path, last_sent: int) -> None:
    state = pb.SubState(
        id=1, client_id=b"c", durable_name=b"billing", is_durable=True, last_sent=last_sent, max_in_flight=9
    )
    s.write_clients(root, "c")
    s.write_subs(root, "foo", (state, []))


def _remove(root: Path, number: int, *suffixes: str) -> None:
    for suffix in suffixes or ("dat", "idx"):
        (root / "foo" / f"msgs.{number}.{suffix}").unlink()


def _cut(root: Path, number: int, size: int, *suffixes: str) -> None:
    for suffix in suffixes or ("dat", "idx"):
        path = root / "foo" / f"msgs.{number}.{suffix}"
        path.write_bytes(path.read_bytes()[:size])


def _newest_lost(root: Path) -> None:
    _durable(root, 30)
    _remove(root, 3)


def _twice(root: Path) -> None:
    s.write_slice(root, "foo", 2, [*range(11, 18), 14, 18, 19, 20], index=False)
    _remove(root, 2, "idx")


def _twice_at_the_end(root: Path) -> None:
    s.write_slice(root, "foo", 3, [*range(21, 31), 30], index=False)
    _remove(root, 3, "idx")


def _exchanged(root: Path) -> None:
    path = root / "foo" / "msgs.2.idx"
    records = s.read_index(path)
    records[3], records[4] = records[4], records[3]
    s.write_index(path, records)


def _shorter(root: Path) -> None:
    path = root / "foo" / "msgs.2.idx"
    s.write_index(path, s.read_index(path)[:-3])


def _longer(root: Path) -> None:
    data = root / "foo" / "msgs.3.dat"
    offset = s.read_index(data.with_suffix(".idx"))[8][1]
    data.write_bytes(data.read_bytes()[:offset])


def _only_zero(root: Path) -> None:
    for number in (2, 3):
        _remove(root, number)
    for suffix in ("dat", "idx"):
        (root / "foo" / f"msgs.1.{suffix}").rename(root / "foo" / f"msgs.0.{suffix}")


def _generation(root: Path) -> None:
    """A server that lost its identity began again at 1, in the files that were there."""
    for number in (2, 3):
        _remove(root, number)
    s.write_slice(root, "foo", 1, range(1, 31))
    old = (root / "foo" / "msgs.1.dat").read_bytes()
    rows = s.read_index(root / "foo" / "msgs.1.idx")
    s.write_slice(root, "foo", 1, range(1, 5), payloads=[b"new %d" % n for n in range(4)])
    new = (root / "foo" / "msgs.1.dat").read_bytes()[4:]
    added = s.read_index(root / "foo" / "msgs.1.idx")
    (root / "foo" / "msgs.1.dat").write_bytes(old + new)
    shift = len(old) - 4
    s.write_index(root / "foo" / "msgs.1.idx", [*rows, *((q, o + shift, t, n) for q, o, t, n in added)])


def _gap(root: Path) -> None:
    s.write_slice(root, "foo", 2, [11, 12, 13, 16, 17, 18, 19, 20])


def _renamed(root: Path) -> None:
    (root / "foo").rename(root / "bar")


def _copied(root: Path) -> None:
    shutil.copytree(root / "foo", root / "foo.bak")


def _stray(root: Path) -> None:
    shutil.copyfile(root / "foo" / "msgs.1.dat", root / "foo" / "msgs.1 (copy).dat")


def _archived(root: Path) -> None:
    for suffix in ("dat", "idx"):
        (root / "foo" / f"msgs.2.{suffix}").rename(root / "foo" / f"msgs.2.{suffix}.bak")


def _zeros(root: Path) -> None:
    for suffix in ("dat", "idx"):
        path = root / "foo" / f"msgs.3.{suffix}"
        path.write_bytes(bytes(path.stat().st_size))


def _cut_at_a_record(root: Path) -> None:
    _cut(root, 3, s.read_index(root / "foo" / "msgs.3.idx")[4][1], "dat")
    _remove(root, 3, "idx")


def _first_hurt(root: Path) -> None:
    """The first message, whose index is gone too."""
    end = s.read_index(root / "foo" / "msgs.1.idx")[1][1]
    path = root / "foo" / "msgs.1.dat"
    path.write_bytes(path.read_bytes()[:4] + b"\xff" * (end - 4) + path.read_bytes()[end:])
    _remove(root, 1, "idx")


def _last_slice_copied(root: Path) -> None:
    for suffix in ("dat", "idx"):
        shutil.copyfile(root / "foo" / f"msgs.1.{suffix}", root / "foo" / f"msgs.4.{suffix}")


#: What is done to 30 messages in three slices; why a start is then not harmless; messages intact, missing, archived;
#: what the first line says.
KINDS: dict[Callable[[Path], object], tuple[set[StartFlawKind], tuple[int, int, int], str]] = {
    lambda _: None: (set(), (30, 0, 0), "healthy: no message of 30 is missing; a start is harmless"),
    _newest_lost: (
        {StartFlawKind.REUSED, StartFlawKind.AHEAD},
        (20, 10, 0),
        "new messages to subscriptions .*foo 21-30 to billing",
    ),
    _twice: ({StartFlawKind.SKIPPED}, (30, 0, 0), "skip intact messages: foo 18-20"),
    _twice_at_the_end: (
        {StartFlawKind.MISPLACED, StartFlawKind.UNPROVEN},
        (30, 0, 0),
        "not find messages that are published next.* from sequence 31 on",
    ),
    _exchanged: ({StartFlawKind.SKIPPED}, (30, 0, 0), "skip intact messages: foo 14"),
    _shorter: ({StartFlawKind.SKIPPED}, (30, 0, 0), "skip intact messages: foo 18-20"),
    _longer: (
        {StartFlawKind.REUSED},
        (28, 2, 0),
        r"2 of 30 messages are missing \(foo 29-30\).*second time: foo 29-30",
    ),
    _only_zero: ({StartFlawKind.CRASH}, (10, 0, 0), "end with a panic at the first lookup of a message: foo 1-10"),
    _generation: (
        {StartFlawKind.UNREACHABLE, StartFlawKind.MISPLACED},
        (34, 0, 0),
        "1-30 of an older generation",
    ),
    _gap: (set(), (28, 2, 0), r"flawed: 2 of 30 messages are missing \(foo 14-15\)"),
    _renamed: ({StartFlawKind.UNREACHABLE}, (30, 0, 0), "not reach intact messages: foo 1-30"),
    _copied: (set(), (30, 0, 0), "no message of 30 is missing"),
    _stray: (set(), (30, 0, 0), "no message of 30 is missing"),
    _archived: (set(), (20, 0, 10), "no message of 30 is missing, 10 of them archived"),
    lambda root: _cut(root, 3, 4): (
        {StartFlawKind.UNKNOWN},
        (20, 0, 0),
        "the content of foo from sequence 21 on is unknown",
    ),
    lambda root: _cut(root, 3, 0): (set(), (20, 0, 0), "the content of foo from sequence 21 on is unknown"),
    _zeros: (set(), (20, 0, 0), "the content of foo from sequence 21 on is unknown"),
    lambda root: _cut(root, 1, 4): (set(), (20, 0, 0), "the content of foo in sequences 1-10 is unknown"),
    lambda root: _cut(root, 2, 4): (set(), (20, 10, 0), r"10 of 30 messages are missing \(foo 11-20\)"),
    lambda root: _cut(root, 3, 4, "dat"): ({StartFlawKind.REUSED}, (20, 10, 0), r"missing \(foo 21-30\)"),
    _first_hurt: (set(), (29, 0, 0), "the content of foo in sequence 1 is unknown"),
    _cut_at_a_record: ({StartFlawKind.UNPROVEN}, (24, 0, 0), "nothing proves that foo ended at 24"),
    lambda root: _remove(root, 2): (set(), (20, 10, 0), r"10 of 30 messages are missing \(foo 11-20\)"),
    lambda root: _remove(root, 1, "dat"): (set(), (20, 10, 0), r"10 of 30 messages are missing \(foo 1-10\)"),
    _last_slice_copied: (
        {StartFlawKind.OVERLAID},
        (30, 0, 0),
        "lose sight of messages .*: foo 11-30",
    ),
}


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_kinds(number: int, tmp_path: Path) -> None:
    damage, (kinds, (intact, missing, archived), first) = list(KINDS.items())[number]
    root = s.healthy(tmp_path / "store")
    damage(root)
    diagnosis = check(root)
    start = diagnosis.starts[0][0]
    assert {each.kind for each in start.flaws} == kinds
    totals = diagnosis.totals
    assert (totals.intact, totals.missing, totals.archived) == (intact, missing, archived)
    assert re.search(first, f"{diagnosis.state.value}: {diagnosis.verdict}"), diagnosis.verdict
    assert (diagnosis.state is Health.HEALTHY) == (number == 0)


def test_an_empty_channel_proves_no_message(tmp_path: Path) -> None:
    s.write_server(tmp_path)
    s.write_clients(tmp_path, "a")
    s.write_subs(tmp_path, "foo")
    diagnosis = check(tmp_path)
    assert diagnosis.state is Health.HEALTHY
    assert diagnosis.totals == OutcomeTotals(readable=0)


def test_the_sentence_has_every_number() -> None:
    assert OutcomeTotals(9, 7, 5, 4, 3, 1).sentence("a start") == (
        "9 messages intact (7 readable now, 2 recoverable), 5 archived, 4 missing before, 3 lost by a start, "
        "in 1 channel the rest is unknown"
    )
    assert OutcomeTotals(1).sentence() == "1 message intact, 0 missing before"
