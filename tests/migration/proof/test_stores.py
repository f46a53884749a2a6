"""Two stores: equal ones however they are laid out, and every kind of difference."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stantools.errors import StantoolsError
from stantools.format.encryption import ChannelCipher, Cipher
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.findings import Finding
from stantools.migration.proof import stores
from stantools.migration.proof.stores import StoresDifference, compare_stores
from stantools.recovery.salvage import SalvageOptions, apply_salvage, plan_salvage
from stantools.store.directory import open_datastore
from stantools.store.read_options import ReadOptions, open_store
from tests.migration.stores import CRC, T0, Record, records, write_store


def compare(a: Path, b: Path, *patterns: str, key: bytes | None = None) -> StoresDifference:
    sides = []
    for path in (a, b):
        sides.append(open_store(path, ReadOptions(encryption_key=key)))
    return compare_stores(*sides, patterns=patterns)


def told(findings: list[Finding]) -> list[tuple[str, str | None, str]]:
    return [(each.code, each.channel, each.detail) for each in findings]


@pytest.mark.parametrize(
    "case",
    ["basic", "durables", "many_channels", "v038", "clustered", "encrypted_aes", "clients_many", "crc_castagnoli"],
)
def test_a_golden_store_and_its_salvage(golden: Path, case: str, tmp_path: Path) -> None:
    """Other files, the same content."""
    root = golden / case / "datastore"
    store = open_store(root)
    apply_salvage(plan_salvage(store, SalvageOptions()), tmp_path / "new")
    found = compare(root, tmp_path / "new")
    assert told(found.findings) == []
    assert found.messages == sum(channel.sequences.count() for channel in plan_salvage(store).channels)
    assert found.damaged == (False, False)


def test_a_golden_store_and_itself(golden: Path) -> None:
    for case in ("damage_base", "durables", "many_channels", "dmg_payload_flip_idx_intact"):
        root = golden / case / "datastore"
        found = compare(root, root)
        assert found.findings == []
        assert found.damaged == (case.startswith("dmg_"),) * 2


def test_a_damaged_golden_store_and_the_healthy_one(golden: Path) -> None:
    healthy = golden / "damage_base" / "datastore"
    for case in ("dmg_payload_flip_idx_intact", "dmg_middle_slice_missing", "dmg_subs_missing"):
        found = compare(healthy, golden / case / "datastore")
        codes = {each.code for each in found.findings}
        assert codes == {"subscription-differs"} if case == "dmg_subs_missing" else codes == {"message-missing"}


def changed_records() -> list[Record]:
    rows = records(100)
    del rows[50:53]
    rows[9] = (10, rows[9][1], b"", b"other")
    rows[19] = (20, rows[19][1] + 5, b"", rows[19][3])
    rows[29] = (30, rows[29][1], b"reply", rows[29][3])
    return [*rows, (101, T0, b"", b"more"), (105, T0, b"", b"")]


def test_messages(tmp_path: Path) -> None:
    a = write_store(tmp_path / "a", {"foo": records(100), "same": records(5)})
    b = write_store(tmp_path / "b", {"foo": changed_records(), "same": records(5)})
    found = compare(a, b, ">")
    assert told(found.findings) == [
        ("message-missing", "foo", "3 messages: 51-53"),
        ("message-extra", "foo", "2 messages: 101, 105"),
        ("message-timestamp", "foo", "1 message: 20"),
        ("message-reply", "foo", "1 message: 30"),
        ("message-payload", "foo", "1 message: 10"),
    ]
    assert [each.seq for each in found.findings] == [51, 101, 20, 30, 10]
    assert (found.channels, found.messages) == (2, 102)
    assert {each.code for each in compare(b, a, "foo").findings} == {each.code for each in found.findings}
    assert compare(a, b, "same").findings == []


def test_channels_and_identity(tmp_path: Path) -> None:
    a = write_store(tmp_path / "a", {"one": records(3), "both": []}, cluster="first")
    b = write_store(tmp_path / "b", {"two": records(4), "both": []}, cluster="second")
    found = told(compare(a, b).findings)
    assert ("channel-missing", "one", "3 messages, 0 subscriptions") in found
    assert ("channel-extra", "two", "4 messages, 0 subscriptions") in found
    assert ("server-differs", None, "cluster_id is 'second' instead of 'first'") in found
    assert {code for code, *_ in found} == {"channel-missing", "channel-extra", "server-differs"}
    assert {code for code, *_ in told(compare(a, b, ">").findings)} == {"channel-missing", "channel-extra"}


def test_clients(tmp_path: Path) -> None:
    one, two = pb.ClientInfo(id=b"one", hb_inbox=b"x"), pb.ClientInfo(id=b"two", hb_inbox=b"y")
    a = write_store(tmp_path / "a", {}, clients=[one, two])
    b = write_store(
        tmp_path / "b", {}, clients=[pb.ClientInfo(id=b"two", hb_inbox=b"z"), pb.ClientInfo(id=b"new", hb_inbox=b"n")]
    )
    assert [each for each in told(compare(a, b).findings) if each[0] == "client-differs"] == [
        ("client-differs", None, "client new: only in the second store"),
        ("client-differs", None, "client one: only in the first store"),
        ("client-differs", None, "client two: hb_inbox is 'z' instead of 'y'"),
    ]
    (b / "clients.dat").unlink()
    assert {each.detail for each in compare(a, b).findings} == {
        f"client {n}: only in the first store" for n in ("one", "two")
    }


def test_subscriptions(tmp_path: Path) -> None:
    def state(number: int, **fields: object) -> pb.SubState:
        return pb.SubState(id=number, client_id=b"c", durable_name=b"d", is_durable=True, **fields)

    a = write_store(
        tmp_path / "a",
        {"foo": records(9)},
        subscriptions={"foo": [(state(1, last_sent=5), [3, 4]), (state(2, last_sent=1), [])]},
    )
    b = write_store(
        tmp_path / "b",
        {"foo": records(9)},
        subscriptions={"foo": [(state(1, last_sent=6), [4, 6]), (state(3, last_sent=1), [])]},
    )
    assert told(compare(a, b, "foo").findings) == [
        (
            "subscription-differs",
            "foo",
            "subscription 1 (client c, durable d): last_sent is 6 instead of 5; pending messages: 1 only in the first "
            "(3), 1 only in the second (6)",
        ),
        ("subscription-differs", "foo", "subscription 2 (client c, durable d): only in the first store"),
        ("subscription-differs", "foo", "subscription 3 (client c, durable d): only in the second store"),
    ]


def test_encrypted_and_plain(tmp_path: Path) -> None:
    cipher = ChannelCipher(b"secret", b"foo", random=b"abcd")
    plain = [(n, T0, b"in" if n % 3 else b"", b"text %d" % n) for n in range(1, 40)]
    sealed = [(n, time, reply, cipher.encrypt(data, Cipher.AES)) for n, time, reply, data in plain]
    a, b = write_store(tmp_path / "a", {"foo": plain}), write_store(tmp_path / "b", {"foo": sealed})
    assert [each.code for each in compare(a, b, "foo").findings] == ["message-payload"]
    assert compare(a, b, "foo", key=b"secret").findings == []
    sealed[20] = (21, T0, b"", cipher.encrypt(b"not that", Cipher.AES))
    other = write_store(tmp_path / "c", {"foo": sealed})
    assert told(compare(a, other, "foo", key=b"secret").findings) == [
        ("message-payload", "foo", "1 message: 21"),
    ]
    with pytest.raises(StantoolsError, match="cannot be decrypted"):
        compare(a, b, "foo", key=b"wrong")


def test_progress_counts_what_is_compared(tmp_path: Path) -> None:
    a = write_store(tmp_path / "a", {"foo": records(100)})
    size = (a / "foo" / "msgs.1.dat").stat().st_size
    seen: list[int] = []
    side = open_datastore(a, CRC)
    compare_stores(side, side, patterns=["foo"], progress=seen.append)
    assert 4 * (size - 4) <= sum(seen) <= 4 * size


def test_looking_changes_nothing(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    root = golden_copy("durables")
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copy2)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}
    assert compare(root, tmp_path / "copy").findings == []
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}


row = st.tuples(
    st.integers(1, 40), st.sampled_from([T0, T0 + 1]), st.sampled_from([b"", b"r", b"rr"]), st.sampled_from([b"", b"x"])
)
rows = st.lists(row, max_size=30, unique_by=lambda each: each[0]).map(sorted)


@settings(max_examples=60, deadline=None)
@given(rows, rows, st.integers(1, 5), st.integers(1, 5))
def test_any_two_channels(
    tmp_path_factory: pytest.TempPathFactory, a: list[Record], b: list[Record], step: int, other_step: int
) -> None:
    """As one would compare them message by message, whatever the batches are."""
    from tests.migration.stores import single

    root = tmp_path_factory.mktemp("stores")
    left, right = (write_store(root / name, {"foo": each}) for name, each in (("a", a), ("b", b)))
    (one, _), (other, _) = single(left, "foo").parts[0], single(right, "foo").parts[0]
    found = stores.compare_messages(one.read(batch_rows=step), other.read(batch_rows=other_step))
    mine, theirs = {r[0]: r for r in a}, {r[0]: r for r in b}
    both = mine.keys() & theirs.keys()
    expected = {"missing": mine.keys() - both, "extra": theirs.keys() - both}
    for place, kind in ((1, "timestamp"), (2, "reply"), (3, "payload")):
        expected[kind] = {n for n in both if mine[n][place] != theirs[n][place]}
    assert found.both == len(both)
    assert {kind: {n for x, y in ranges for n in range(x, y + 1)} for kind, ranges in found.differing()} == {
        kind: numbers for kind, numbers in expected.items() if numbers
    }
