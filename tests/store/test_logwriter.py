"""The log writers write what the real server writes, compact as it does, and lose nothing on errors."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from pathlib import Path

import pytest

from stantools.errors import StoreUnwritableError, UsageError
from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.layout import ClientRecord, ScanStop, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.store.clientlog import read_clients
from stantools.store.compactionrules import CompactionRules
from stantools.store.logwriter import ClientsLog, SubsLog, encode_live
from stantools.store.sublog import SubsState, read_subs
from tests.conftest import GOLDEN, KINDS_OF_STORES, cases_by_kind, golden_cases, load_expected, others_slow
from tests.envelopes import Records

IEEE = Crc()
EAGER = CompactionRules(fragmentation=50, interval=1, min_size=0)


def crc_of(case: str) -> Crc:
    return Crc(load_expected(case)["options"]["file_crc_poly"])


def healthy() -> list[str]:
    return [case for case in golden_cases() if "damage" not in load_expected(case)]


def healthy_subs() -> list[tuple[str, str]]:
    return [
        (case, path.parent.name)
        for case in healthy()
        if case != "many_channels"
        for path in sorted((GOLDEN / case / "datastore").glob("*/subs.dat"))
    ]


@pytest.mark.parametrize("case", cases_by_kind(healthy()))
def test_rewriting_golden_clients(golden, tmp_path, case):
    wanted = (golden / case / "datastore" / "clients.dat").read_bytes()
    crc = crc_of(case)
    found = Records(memoryview(wanted), 4, len(wanted), typed=True, crc=crc)
    with ClientsLog(tmp_path, crc) as log:
        for record in found:
            if record.type == ClientRecord.ADD:
                log.add(gogo.decode(pb.ClientInfo, record.payload))
            else:
                log.delete(gogo.decode(pb.ClientDelete, record.payload).id)
    assert found.stop is ScanStop.END
    assert (tmp_path / "clients.dat").read_bytes() == wanted


def write(log: SubsLog, buffer: bytes, crc: Crc) -> None:
    """Writes a log's records again, runs of Msg and Ack at once, as their records were counted by the fold."""
    found = Records(memoryview(buffer), 4, len(buffer), typed=True, crc=crc)
    flowing = (SubRecord.MSG, SubRecord.ACK)
    for flow, group in itertools.groupby(found, lambda record: record.type in flowing):
        if flow:
            rows = [(each.type, gogo.decode(pb.SubStateUpdate, each.payload)) for each in group]
            log.flow([kind for kind, _ in rows], [row.id for _, row in rows], [row.seqno for _, row in rows])
            continue
        for record in group:
            if record.type == SubRecord.DELETE:
                log.delete(gogo.decode(pb.SubStateDelete, record.payload).id, 0)
            else:
                state = gogo.decode(pb.SubState, record.payload)
                log.new(state) if record.type == SubRecord.NEW else log.update(state)
    assert found.stop is ScanStop.END


@pytest.mark.parametrize(("case", "channel"), others_slow(healthy_subs(), KINDS_OF_STORES))
def test_rewriting_golden_subscriptions(golden, tmp_path, case, channel):
    wanted = (golden / case / "datastore" / channel / "subs.dat").read_bytes()
    crc = crc_of(case)
    with SubsLog(tmp_path, tmp_path, crc) as log:
        write(log, wanted, crc)
        assert log.size == len(wanted) - 4
    assert (tmp_path / "subs.dat").read_bytes() == wanted


def folded(state: SubsState) -> dict[int, tuple[bytes, set[int]]]:
    return {i: (each.state.SerializeToString(), each.pending) for i, each in state.subscriptions.items()}


@pytest.mark.parametrize(("case", "channel"), others_slow(healthy_subs(), KINDS_OF_STORES))
def test_compacting_golden_subscriptions_keeps_their_meaning(golden, tmp_path, case, channel):
    crc = crc_of(case)
    source = (golden / case / "datastore" / channel / "subs.dat").read_bytes()
    (tmp_path / channel).mkdir()
    path = tmp_path / channel / "subs.dat"
    path.write_bytes(source)
    before = read_subs(memoryview(source), crc)
    with SubsLog(tmp_path / channel, tmp_path, crc, records=before.records, dead=before.dead) as log:
        log.compact((each.state, each.pending) for each in before.subscriptions.values())
        after = read_subs(memoryview(path.read_bytes()), crc)
        assert (log.records, log.dead, log.size) == (after.records, after.dead, after.record_bytes)
    assert folded(after) == folded(before)
    assert after.dead == 0
    assert os.listdir(tmp_path) == [channel]  # noqa: PTH208 (nothing temporary is left)


def subscription(number: int, **fields: object) -> pb.SubState:
    return pb.SubState(
        id=number, client_id=b"me", inbox=b"i", ack_inbox=b"a", max_in_flight=10, ack_wait_in_secs=30, **fields
    )


def test_the_bytes_of_the_worked_example(tmp_path):
    (tmp_path / "foo").mkdir()
    with ClientsLog(tmp_path, IEEE) as clients:
        clients.add(
            pb.ClientInfo(id=b"me", hb_inbox=b"_HB.me", conn_id=b"conn-me", protocol=1, ping_interval=5, ping_max_out=3)
        )
        clients.delete(b"me")
    state = pb.SubState(
        id=1,
        client_id=b"me",
        inbox=b"_SI.me.1",
        ack_inbox=b"_INBOX.6wSNt41ZMFPdcxWGWZG3bH",
        max_in_flight=10,
        ack_wait_in_secs=30,
        durable_name=b"d1",
        is_durable=True,
    )
    with SubsLog(tmp_path / "foo", tmp_path, IEEE) as subs:
        subs.new(state)
        subs.sent(1, [1, 2])
        subs.acked(1, 1)
        state.last_sent, state.is_closed = 2, True
        subs.update(state)
        assert (subs.records, subs.dead) == (4, 2)
    assert (tmp_path / "clients.dat").read_bytes() == bytes.fromhex(
        "01000000 1b000001ffeecc5f 0a026d65 12065f48422e6d65 1a07636f6e6e2d6d65 2001 2805 3003040000022b6bf6a0 0a026d65"
    )
    inbox = b"_INBOX.6wSNt41ZMFPdcxWGWZG3bH".hex()
    assert (tmp_path / "foo" / "subs.dat").read_bytes() == bytes.fromhex(
        f"01000000 3900000108969bcc 0801 12026d65 22085f53492e6d652e31 2a1d{inbox} 300a 381e 42026431 5001"
        "0400000503bff7d8 08011001 04000005b9eefe41 08011002 0400000403bff7d8 08011001"
        f"3d0000028296867a 0801 12026d65 22085f53492e6d652e31 2a1d{inbox} 300a 381e 42026431 4802 5001 5801"
    )


def test_when_a_compaction_is_due(tmp_path):
    """The example of the specification: the fourth Ack of six messages, with a threshold of 50 %."""
    with SubsLog(tmp_path, tmp_path, IEEE, EAGER) as log:
        log.new(subscription(1))
        log.sent(1, [1, 2, 3, 4, 5, 6])
        for sequence in (1, 2, 3):
            log.acked(1, sequence)
            assert not log.due()
        log.acked(1, 4)
        assert log.due()
        log.compact([(subscription(1, last_sent=6), {6, 5})])
        assert not log.due()
    wanted = encode_live(subscription(1, last_sent=6), [5, 6], IEEE)
    assert (tmp_path / "subs.dat").read_bytes() == b"\1\0\0\0" + wanted


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (EAGER, True),
        (CompactionRules(enabled=False, min_size=0), False),
        (CompactionRules(min_size=1 << 20), False),
        (CompactionRules(fragmentation=101, min_size=0), False),
        (CompactionRules(fragmentation=100, min_size=0), True),
    ],
)
def test_the_rules_of_compaction(tmp_path, rules, expected):
    with SubsLog(tmp_path, tmp_path, IEEE, rules, records=3, dead=3) as log:
        assert log.due() is expected
    (tmp_path / "subs.dat").unlink()
    with SubsLog(tmp_path, tmp_path, IEEE, rules) as log:
        assert log.due() is expected, "no records count as fragmentation of 100"


def test_the_interval_between_compactions(tmp_path):
    rules = CompactionRules(interval=300, min_size=0)
    with ClientsLog(tmp_path, IEEE, rules, deletes=9) as log:
        assert log.due(3, now=5.0), "the first one need not wait"
        log.compact([], now=5.0)
        log.deletes = 9
        assert not log.due(3, now=304.9)
        assert log.due(3, now=305.0)
        assert not log.due(10, now=305.0), "47 percent"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"fragmentation": 0}, "compact fragmentation value must at least be 1"),
        ({"interval": 0}, "compact interval value must at least be 1 seconds"),
        ({"min_size": -1}, "compact minimum file size value must be a positive number"),
    ],
)
def test_rules_that_make_no_sense(fields, text):
    with pytest.raises(UsageError, match=text):
        CompactionRules(**fields)


def test_clients_are_compacted(tmp_path):
    with ClientsLog(tmp_path, IEEE, EAGER) as log:
        clients = [pb.ClientInfo(id=b"c%d" % n, hb_inbox=b"h") for n in range(4)]
        for client in clients:
            log.add(client)
        (tmp_path / "clients.dat").chmod(0o640)
        for n in (0, 1):
            log.delete(b"c%d" % n)
        assert log.due(2)
        log.compact(clients[2:])
        assert not log.due(2)
        log.add(pb.ClientInfo(id=b"after", hb_inbox=b"h"))
    path = tmp_path / "clients.dat"
    state = read_clients(memoryview(path.read_bytes()), IEEE)
    assert list(state.clients) == [b"c2", b"c3", b"after"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["clients.dat"]


def test_subscription_records_wait_for_the_flush_client_records_do_not(tmp_path):
    with ClientsLog(tmp_path, IEEE) as clients, SubsLog(tmp_path, tmp_path, IEEE) as subs:
        clients.add(pb.ClientInfo(id=b"me"))
        subs.new(subscription(1))
        assert (tmp_path / "clients.dat").stat().st_size > 4
        assert (tmp_path / "subs.dat").stat().st_size == 4
        subs.write_out()
        assert (tmp_path / "subs.dat").stat().st_size == 4 + subs.size


def test_the_buffer_is_bounded(tmp_path):
    with SubsLog(tmp_path, tmp_path, IEEE, buffer_size=100) as log:
        for n in range(1, 100):
            log.sent(1, n)
            assert log.size - ((tmp_path / "subs.dat").stat().st_size - 4) < 100


def test_opening_again_appends(tmp_path):
    for n in (1, 2):
        with SubsLog(tmp_path, tmp_path, IEEE) as log:
            log.new(subscription(n))
    assert set(read_subs(memoryview((tmp_path / "subs.dat").read_bytes()), IEEE).subscriptions) == {1, 2}


@pytest.mark.parametrize("content", [b"\1", b"\2\0\0\0"])
def test_a_bad_version_header(tmp_path, content):
    (tmp_path / "subs.dat").write_bytes(content)
    with pytest.raises(StoreUnwritableError, match="cannot be appended to"):
        SubsLog(tmp_path, tmp_path, IEEE)
    assert (tmp_path / "subs.dat").read_bytes() == content


def test_a_file_of_no_bytes_gets_its_header(tmp_path):
    (tmp_path / "clients.dat").write_bytes(b"")
    ClientsLog(tmp_path, IEEE).close()
    assert (tmp_path / "clients.dat").read_bytes() == b"\1\0\0\0"


def disk_full(monkeypatch, *, part: int = 0) -> None:
    def failing(real):
        def write(descriptor, data, *at):
            if part:
                real(descriptor, bytes(data[:part]), *at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return write

    for name in ("write", "pwrite"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))


@pytest.mark.parametrize("part", [0, 5])
def test_a_full_disk_leaves_whole_records(tmp_path, monkeypatch, part):
    clients = ClientsLog(tmp_path, IEEE)
    clients.add(pb.ClientInfo(id=b"one", hb_inbox=b"h"))
    subs = SubsLog(tmp_path, tmp_path, IEEE)
    subs.new(subscription(1))
    subs.write_out()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    sizes = clients.size, subs.size
    disk_full(monkeypatch, part=part)
    with pytest.raises(StoreUnwritableError, match=r"No space left .* ends with the last whole record"):
        clients.add(pb.ClientInfo(id=b"two", hb_inbox=b"h"))
    subs.new(subscription(2))
    with pytest.raises(StoreUnwritableError):
        subs.write_out()
    with pytest.raises(StoreUnwritableError, match="it is unchanged"):
        subs.compact([])
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert (clients.size, subs.size) == sizes
    subs.new(subscription(3))
    subs.close()
    clients.close()
    assert set(read_subs(memoryview((tmp_path / "subs.dat").read_bytes()), IEEE).subscriptions) == {1, 3}


def test_a_full_disk_at_creation_leaves_no_file(tmp_path, monkeypatch):
    disk_full(monkeypatch)
    with pytest.raises(StoreUnwritableError):
        ClientsLog(tmp_path, IEEE)
    assert not list(tmp_path.iterdir())


def test_a_compaction_whose_rename_fails_leaves_the_old_log_in_use(tmp_path, monkeypatch):
    (tmp_path / "foo").mkdir()
    log = SubsLog(tmp_path / "foo", tmp_path, IEEE)
    log.new(subscription(1))

    def replace(self: Path, target: Path) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(target))

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(StoreUnwritableError, match="it is unchanged"):
        log.compact([])
    monkeypatch.undo()
    log.new(subscription(2))
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["foo"]
    assert set(read_subs(memoryview((tmp_path / "foo" / "subs.dat").read_bytes()), IEEE).subscriptions) == {1, 2}
