"""The rules of a start that no golden store shows, each on a store made for it."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from stantools.errors import UsageError
from stantools.format.crc import Crc
from stantools.format.envelope import encode
from stantools.format.proto import store_pb2 as pb
from stantools.inspection.forecast import (
    Forecast,
    Harm,
    OtherUser,
    ServerOptions,
    forecast,
    forecast_both,
    forecast_versions,
)
from stantools.inspection.start_verdict import judge_start
from stantools.inspection.verify import verify
from stantools.store.directory import open_datastore
from stantools.store.limits import ChannelLimits, PatternLimits, StoreLimits
from stantools.store.ranges import Ranges
from stantools.store.sublog import SubStatus
from tests.conftest import cases_by_kind, golden_cases, load_expected, others_slow
from tests.inspection import forecast_golden as g
from tests.inspection import forecast_stores as s
from tests.trees import dated


def _forecast(root: Path, *, truncate: bool = False, **options: object) -> Forecast:
    before = dated(root)
    options.setdefault("store_name", "/s")
    result = forecast(open_datastore(root), ServerOptions(**options), truncate=truncate)  # type: ignore[arg-type]
    assert dated(root) == before
    json.dumps(result.as_json())
    return result


def _limits(**values: int) -> StoreLimits:
    return StoreLimits(channel=ChannelLimits(**({"max_msgs": 0, "max_bytes": 0} | values)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return s.healthy(tmp_path / "store")


class TestServerFile:
    def test_other_cluster_id(self, store: Path) -> None:
        result = _forecast(store, cluster_id="other")
        assert (result.starts, result.exit_code) == (False, 1)
        assert result.error == 'cluster ID "other" does not match recovered value of "test-cluster"'
        assert result.channels == {} and result.clients == {}

    def test_lost_with_channels(self, store: Path) -> None:
        (store / "server.dat").unlink()
        old = _forecast(store)
        assert old.starts and not old.recovered and not old.channels
        new = _forecast(store, version="0.25.6", cluster_id="mine")
        assert new.recovered and new.channels["foo"].count == 30
        assert new.server_info is not None and new.server_info.cluster_id == b"mine"
        assert new.files_changed()["server.dat"] == (None, 4 + 8 + new.server_info.ByteSize())
        assert "Will initialize server and restart recovery!" in new.log[1]

    def test_lost_without_channels(self, tmp_path: Path) -> None:
        s.write_server(tmp_path)
        (tmp_path / "server.dat").write_bytes(b"\x01\x00\x00\x00")
        for version in ("0.23.2", "0.25.6"):
            result = _forecast(tmp_path, version=version)
            assert result.log == ["[INF] STREAM: Recovering the state...", "[INF] STREAM: No recovered state"]
            assert result.files_changed() == {"clients.dat": (None, 4)}
            assert result.files_changed_by_run()["server.dat"] == (4, 208)

    def test_from_before_0_3_4_is_rewritten(self, store: Path) -> None:
        info = pb.ServerInfo(cluster_id=b"test-cluster", publish=b"_STAN.pub.x")
        (store / "server.dat").write_bytes(b"\x01\x00\x00\x00" + encode(info.SerializeToString(), s.CRC))
        result = _forecast(store)
        assert result.server_info == info
        assert "server.dat" not in result.changes and "server.dat" in result.run_changes

    def test_clients_are_opened_before_server_is_read(self, store: Path) -> None:
        (store / "server.dat").write_bytes((store / "server.dat").read_bytes()[:20])
        (store / "clients.dat").write_bytes(b"\x02\x00\x00\x00")
        error = _forecast(store).error
        assert error == 'unable to recover client file "clients.dat": unsupported file version: 2 (supports [1..1])'


class TestWitness:
    def test_rule(self, store: Path) -> None:
        witness = store / ".truncate.lck"
        first = _forecast(store, truncate=True)
        assert first.starts and first.files_changed() == {".truncate.lck": (None, 0)}
        witness.touch()
        second = _forecast(store, truncate=True)
        assert not second.starts and second.files_changed() == {}
        assert second.log == [f"[FTL] STREAM: Failed to start: {second.error}"]
        assert _forecast(store).files_changed() == {".truncate.lck": (0, None)}

    def test_cannot_be_created(self, store: Path) -> None:
        store.chmod(0o755)
        result = _forecast(store, truncate=True, access=OtherUser(65534))
        assert result.error == "open /s/.truncate.lck: permission denied"


class TestAccess:
    def test_index_cannot_be_created(self, store: Path) -> None:
        for path in [store, *store.rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        (store / "foo" / "msgs.2.idx").unlink()
        (store / "foo").chmod(0o755)
        result = _forecast(store, access=OtherUser(65534))
        assert result.error == (
            'unable to recover message store for [foo](file: "foo/msgs.2.idx"): '
            "open /s/foo/msgs.2.idx: permission denied"
        )

    def test_channel_cannot_be_listed(self, store: Path) -> None:
        for path in [store, *store.rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        (store / "foo").chmod(0o733)
        error = _forecast(store, access=OtherUser(65534)).error
        assert error is not None and error.endswith("open /s/foo: permission denied")

    def test_owner_and_group(self, store: Path) -> None:
        path = store / "clients.dat"
        path.chmod(0o660)
        owner, group = path.stat().st_uid, path.stat().st_gid
        store.chmod(0o777)
        assert OtherUser(owner + 1, frozenset({group})).may_open(path)
        assert not OtherUser(owner + 1, frozenset({group + 1})).may_open(path)
        assert OtherUser(0).may_open(path)


class TestIndex:
    def test_header_only_and_torn(self, store: Path) -> None:
        (store / "foo" / "msgs.2.idx").write_bytes(b"\x01\x00\x00\x00")
        data = store / "foo" / "msgs.2.dat"
        data.write_bytes(data.read_bytes()[:-3])
        for truncate in (False, True):
            result = _forecast(store, truncate=truncate)
            assert not result.starts
            assert result.files_changed()["foo/msgs.2.idx"] == (4, None)
            assert "foo/msgs.2.dat" not in result.files_changed()
            assert result.log[1] == '[ERR] STREAM: Unexpected EOF for file "/s/foo/msgs.2.idx"'
        assert result.error is not None and result.error.endswith("write /s/foo/msgs.2.idx: file already closed")

    def test_header_only_and_padded(self, store: Path) -> None:
        (store / "foo" / "msgs.2.idx").write_bytes(b"\x01\x00\x00\x00")
        data = store / "foo" / "msgs.2.dat"
        data.write_bytes(data.read_bytes() + bytes(100))
        result = _forecast(store)
        assert result.error is not None and result.error.endswith("): write /s/foo/msgs.2.idx: file already closed")
        (store / "foo" / "msgs.2.idx").unlink()
        result = _forecast(store)
        assert result.starts and result.changes["foo/msgs.2.dat"].after == data.stat().st_size - 100

    def test_dangling_header_is_a_clean_end(self, store: Path) -> None:
        (store / "foo" / "msgs.3.idx").unlink()
        data = store / "foo" / "msgs.3.dat"
        data.write_bytes(data.read_bytes() + struct.pack("<II", 5, 77))
        result = _forecast(store)
        assert result.starts and list(result.changes) == ["foo/msgs.3.idx"] and result.channels["foo"].count == 30

    def test_zero_record_hides_messages(self, store: Path) -> None:
        path = store / "foo" / "msgs.2.idx"
        content = bytearray(path.read_bytes())
        content[4 + 32 * 6 : 4 + 32 * 7] = bytes(32)
        path.write_bytes(content)
        result = _forecast(store)
        assert result.files_changed() == {"foo/msgs.2.idx": (324, 196)}
        assert result.channels["foo"].missing.pairs() == [(17, 20)]

    @pytest.mark.parametrize(
        ("version", "text"),
        [
            ("0.23.2", "last message size in index is 9, data file is {}"),
            ("0.25.6", "unable to read last record: expected record size to be 9 bytes, got {} bytes"),
        ],
    )
    def test_last_size(self, store: Path, version: str, text: str) -> None:
        path = store / "foo" / "msgs.1.idx"
        records = s.read_index(path)
        size = records[-1][3]
        s.write_index(path, [*records[:-1], (*records[-1][:3], 9)])
        log = _forecast(store, version=version).log
        assert log[1] == (
            f'[ERR] STREAM: Verification of last message for file "/s/foo/msgs.1.dat" failed: {text.format(size)}'
        )
        s.write_index(path, [*records[:-1], (*records[-1][:3], 0)])
        assert (len(_forecast(store, version=version).log) == 2) == (version == "0.25.6")

    def test_negative_offset(self, store: Path) -> None:
        path = store / "foo" / "msgs.1.idx"
        records = s.read_index(path)
        s.write_index(path, [*records[:-1], (10, -5, *records[-1][2:])])
        assert "failed: unable to set position to -5" in _forecast(store).log[1]

    def test_other_sequence(self, store: Path) -> None:
        path = store / "foo" / "msgs.1.idx"
        records = s.read_index(path)
        s.write_index(path, [*records[:-1], (11, *records[-1][1:])])
        assert "failed: last message sequence in index is 11, data file is 10" in _forecast(store).log[1]

    def test_not_a_message(self, store: Path) -> None:
        data = store / "foo" / "msgs.3.dat"
        (store / "foo" / "msgs.3.idx").unlink()
        data.write_bytes(data.read_bytes() + encode(b"\x08", s.CRC))
        result = _forecast(store, truncate=True)
        assert result.error == 'unable to recover message store for [foo](file: "foo/msgs.3.idx"): unexpected EOF'
        assert len(result.log) == 2
        # Without CRC check the text is still that of the decoder.
        data.write_bytes(data.read_bytes()[:-1] + b"\x0f")
        error = _forecast(store, crc=Crc(check=False)).error
        assert error is not None and error.endswith(": proto: wrong wireType = 7 for field Sequence")


class TestLimits:
    def test_all_expired(self, store: Path) -> None:
        result = _forecast(store, limits=_limits(max_age_ns=s.SECOND), now_ns=s.START + 1000 * s.SECOND)
        channel = result.channels["foo"]
        assert (channel.first_seq, channel.last_seq, channel.count, channel.bytes) == (31, 30, 0, 0)
        assert channel.delivered == [] and channel.missing.pairs() == []
        gone = {path for path, sizes in result.files_changed().items() if sizes[1] is None}
        assert gone == {f"foo/msgs.{n}.{kind}" for n in (1, 2) for kind in ("dat", "idx")}

    @pytest.mark.parametrize("index", [True, False])
    def test_age(self, store: Path, index: bool) -> None:
        if not index:
            for path in (store / "foo").glob("*.idx"):
                path.unlink()
        now = s.START + 100 * s.SECOND
        # Sequence 17 is exactly as old as allowed, which is too old.
        result = _forecast(store, limits=_limits(max_age_ns=83 * s.SECOND), now_ns=now)
        channel = result.channels["foo"]
        assert (channel.first_seq, channel.count, channel.delivered) == (18, 13, [(18, 30)])
        assert result.files_changed()["foo/msgs.1.dat"][1] is None
        assert ("foo/msgs.2.idx" in result.changes) != index

    def test_bytes_keep_the_newest(self, store: Path) -> None:
        assert _forecast(store, limits=_limits(max_bytes=1)).channels["foo"].delivered == [(30, 30)]

    @pytest.mark.parametrize("limit", range(1, 31, 3))
    def test_bytes(self, store: Path, limit: int) -> None:
        whole = _forecast(store, limits=_limits()).channels["foo"]
        cost = [size + 40 for n in (1, 2, 3) for *_, size in s.read_index(store / "foo" / f"msgs.{n}.idx")]
        assert whole.bytes == sum(cost)
        kept = sum(cost[-limit:])
        for slack, first in ((0, 31 - limit), (-1, min(32 - limit, 30))):
            channel = _forecast(store, limits=_limits(max_bytes=kept + slack)).channels["foo"]
            assert (channel.first_seq, channel.count) == (first, 31 - first)
            assert channel.bytes == sum(cost[first - 1 :])

    def test_count_and_pattern(self, store: Path) -> None:
        limits = StoreLimits(channel=ChannelLimits(max_msgs=0), per_channel={">": PatternLimits(max_msgs=4)})
        assert _forecast(store, limits=limits).channels["foo"].delivered == [(27, 30)]


class TestSequences:
    def test_disorder(self, tmp_path: Path) -> None:
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 1, [1, 2, 3, 4, 1, 2])
        channel = _forecast(tmp_path).channels["foo"]
        # First and last of the slice are those of its first and last record.
        assert (channel.first_seq, channel.last_seq, channel.count) == (1, 2, 6)
        assert channel.lookups.readable.pairs() == [(1, 2)]

    @pytest.mark.parametrize("index", [True, False])
    @pytest.mark.parametrize("ahead", [0, 2 << 20])
    def test_search_goes_backwards(self, tmp_path: Path, index: bool, ahead: int) -> None:
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 1, [1, 5, 3, 4, 6, 9], index=index)
        channel = _forecast(tmp_path, read_buffer_size=ahead).channels["foo"]
        # 5 is looked for at position 4 and before, and found at position 1; 6 at position 5 and before.
        assert channel.lookups.readable.pairs() == [(1, 1), (3, 6), (9, 9)]
        assert channel.missing.pairs() == [(2, 2), (7, 8)]

    @pytest.mark.parametrize("ahead", [0, 50, 2 << 20])
    def test_index_records_that_changed_places(self, tmp_path: Path, ahead: int) -> None:
        """As a real server read such a store: not 3, which lies behind the place where it is looked for."""
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 1, range(1, 74), payloads=[bytes(n % 7) for n in range(1, 74)])
        self._swap(tmp_path, 3, 4)
        channel = _forecast(tmp_path, read_buffer_size=ahead).channels["foo"]
        assert (channel.first_seq, channel.last_seq, channel.count) == (1, 73, 73)
        assert channel.lookups.readable.pairs() == channel.delivered == [(1, 2), (4, 73)]
        assert channel.missing.pairs() == [(3, 3)]
        assert channel.alone is None

    @pytest.mark.parametrize("ahead", [0, 50, 2 << 20])
    @pytest.mark.parametrize("size", [0, 1])
    def test_only_rows_in_succession_are_read_ahead(self, tmp_path: Path, ahead: int, size: int) -> None:
        """Whether or not the records have the same size: 3 is looked for where its row no longer is."""
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 1, range(1, 74), payloads=[bytes(4 + size * (n % 7)) for n in range(1, 74)])
        self._swap(tmp_path, 3, 4)
        channel = _forecast(tmp_path, read_buffer_size=ahead).channels["foo"]
        assert channel.lookups.readable.pairs() == [(1, 2), (4, 73)]
        assert not channel.lookups.wrong and channel.alone is None

    @pytest.mark.parametrize("ahead", [0, 50, 2 << 20])
    def test_a_record_that_is_there_twice_shifts_the_lookups_after_it(self, tmp_path: Path, ahead: int) -> None:
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 1, [1, 2, 3, 4, 5, 3, 6, 7, 8], index=False)
        s.write_slice(tmp_path, "foo", 2, range(9, 13))
        channel = _forecast(tmp_path, read_buffer_size=ahead).channels["foo"]
        assert channel.delivered == [(1, 5), (9, 12)]
        assert channel.missing.pairs() == [(6, 8)]

    def test_the_only_slice_has_number_zero(self, tmp_path: Path) -> None:
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 0, range(1, 11))
        channel = _forecast(tmp_path).channels["foo"]
        assert (channel.delivered, channel.stalls_at) == ([], 1)
        assert channel.stall_error.startswith("panic: ")
        s.write_slice(tmp_path, "foo", 1, range(11, 13))
        assert _forecast(tmp_path).channels["foo"].delivered == [(1, 12)]

    def _swap(self, root: Path, one: int, other: int) -> None:
        file = root / "foo" / "msgs.1.idx"
        records = s.read_index(file)
        records[one - 1], records[other - 1] = records[other - 1], records[one - 1]
        s.write_index(file, records)

    def test_a_slice_without_order_and_with_damage(self, tmp_path: Path) -> None:
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 1, range(1, 31), payloads=[bytes(n % 7) for n in range(1, 31)])
        self._swap(tmp_path, 11, 13)
        file = tmp_path / "foo" / "msgs.1.dat"
        content = bytearray(file.read_bytes())
        content[s.read_index(file.with_suffix(".idx"))[19][1] + 9] ^= 1
        file.write_bytes(content)
        channel = _forecast(tmp_path).channels["foo"]
        assert channel.lookups.readable.pairs() == [(1, 10), (12, 19), (21, 30)]
        assert channel.stalls_at == 20 and channel.stall_error.startswith("corrupted data")
        assert channel.missing.pairs() == [(11, 11)]

    def test_gaps(self, tmp_path: Path) -> None:
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 1, [3, 4, 8, 9])
        s.write_slice(tmp_path, "foo", 2, [20, 25], index=False)
        channel = _forecast(tmp_path).channels["foo"]
        assert channel.delivered == [(3, 4), (8, 9), (20, 20), (25, 25)]

    def test_overlap_prefers_the_last_slice(self, tmp_path: Path) -> None:
        s.write_server(tmp_path)
        s.write_slice(tmp_path, "foo", 1, range(1, 11))
        s.write_slice(tmp_path, "foo", 2, range(11, 15))
        s.write_slice(tmp_path, "foo", 3, [5, 8])
        channel = _forecast(tmp_path).channels["foo"]
        # Between 5 and 8 only the last slice is asked, and it has no 6 and 7.
        assert channel.lookups.readable.pairs() == [(1, 5), (8, 14)]
        assert (channel.first_seq, channel.last_seq, channel.count) == (1, 14, 16)

    def test_misnamed_slice_comes_first(self, store: Path) -> None:
        (store / "foo" / "msgs..dat").touch()
        error = _forecast(store).error
        assert error is not None and error.endswith('[foo](file: ""): message log has an invalid name: msgs..dat')


def _sub(number: int, client: str, **fields: object) -> pb.SubState:
    values = {"inbox": b"i", "ack_inbox": b"a", "max_in_flight": 3} | fields
    return pb.SubState(id=number, client_id=client.encode(), **values)  # type: ignore[arg-type]


class TestSubscriptions:
    def test_status_and_warnings(self, store: Path) -> None:
        s.write_clients(store, "c")
        s.write_subs(
            store,
            "foo",
            (_sub(1, "c", last_sent=30), []),
            (_sub(2, "gone"), []),
            (_sub(3, "gone", durable_name=b"d", is_durable=True), [1]),
            (_sub(4, "c", durable_name=b"e", is_durable=True, is_closed=True), []),
            (_sub(5, "", q_group=b"d:g", is_durable=True, last_sent=7), []),
            (_sub(6, "gone", q_group=b"d:h", is_durable=True), []),
            (_sub(7, "", q_group=b"d:g", is_durable=True), []),
        )
        result = _forecast(store)
        channel = result.channels["foo"]
        assert [each.status for each in channel.subscriptions] == [
            SubStatus.ACTIVE,
            SubStatus.ORPHAN,
            SubStatus.OFFLINE_DURABLE,
            SubStatus.OFFLINE_DURABLE,
            SubStatus.SHADOW,
            SubStatus.GHOST,
            SubStatus.SHADOW,
        ]
        assert result.log[2:] == [
            "[WRN] STREAM: Not recovering ghost durable queue subscriber: [gone]:[d:h] subject=foo inbox=i",
            '[WRN] STREAM: Duplicate shadow durable queue consumer (subid=7) for group "d:g"',
        ]
        before = (store / "foo" / "subs.dat").stat().st_size
        assert result.files_changed() == {}
        assert result.files_changed_by_run() == {"foo/subs.dat": (before, before + 10)}

    def test_delivery_at_start(self, store: Path) -> None:
        s.write_clients(store, "c")
        s.write_subs(store, "foo", (_sub(1, "c", last_sent=9), [8, 9]), (_sub(2, "c", q_group=b"q", last_sent=28), []))
        data = store / "foo" / "msgs.1.dat"
        content = bytearray(data.read_bytes())
        content[s.read_index(store / "foo" / "msgs.1.idx")[7][1] + 15] ^= 1
        data.write_bytes(content)
        (store / "foo" / "msgs.2.dat").unlink()
        result = _forecast(store)
        failure = result.channels["foo"].lookups.errors[8]
        # Sequence 8 cannot be read: it stays pending and, being the first of the list, is tried twice. 9 is sent again,
        # 10 fills the subscription. The group gets 29 and 30.
        line = f"[ERR] STREAM: Error getting message for redelivery subid=1, seq=8, err={failure}"
        assert result.log[2:] == [line, line]
        before, after = result.files_changed_by_run()["foo/subs.dat"]
        assert before is not None and after == before + 3 * 12
        assert result.channels["foo"].stalls_at == 8 and result.channels["foo"].delivered == [(1, 7)]

    def test_new_messages_that_cannot_be_read(self, store: Path) -> None:
        s.write_clients(store, "c")
        s.write_subs(store, "foo", (_sub(1, "c", last_sent=6), []), (_sub(2, "c", last_sent=9), [50]))
        path = store / "foo" / "msgs.1.idx"
        records = s.read_index(path)
        records[7] = (8, 10**9, *records[7][2:])
        s.write_index(path, records)
        result = _forecast(store, read_buffer_size=0)
        assert result.log[2:] == ["[ERR] STREAM: Error looking up message foo:8 (EOF)"]
        before, after = result.files_changed_by_run()["foo/subs.dat"]
        # 7 is sent to the first; of the second, 50 is acknowledged, and it is already the last that was sent.
        assert before is not None and after == before + 2 * 12


class TestWhole:
    def test_unknown_version(self) -> None:
        with pytest.raises(UsageError, match="not known"):
            ServerOptions(version="0.1.0")
        with pytest.raises(UsageError, match="positive"):
            ServerOptions(read_buffer_size=-1)

    def test_without_lookups_only_the_start_is_read(self, store: Path) -> None:
        data = store / "foo" / "msgs.1.dat"
        content = bytearray(data.read_bytes())
        content[20] ^= 1
        data.write_bytes(content)
        result = forecast(open_datastore(store), lookups=False)
        assert result.starts and result.channels["foo"].count == 30 and not result.channels["foo"].lookups.readable
        assert forecast(open_datastore(store)).channels["foo"].stalls_at == 1

    def test_first_bad_channel_ends_it(self, tmp_path: Path) -> None:
        for channel in ("a", "b", "c", "d"):
            s.healthy(tmp_path, channel=channel, slices=1)
        for channel in ("b", "c"):
            os.truncate(tmp_path / channel / "msgs.1.dat", 31)
        for workers in (1, 4):
            result = _forecast(tmp_path, workers=workers)
            assert result.error is not None and "[b]" in result.error
            assert list(result.changes) == ["b/msgs.1.idx"]
        assert _forecast(tmp_path, truncate=True).channels.keys() == {"a", "b", "c", "d"}

    def test_progress_counts_data_bytes(self, store: Path) -> None:
        told: list[int] = []
        forecast(open_datastore(store), progress=told.append)
        assert sum(told) == sum(path.stat().st_size - 4 for path in store.rglob("*.dat") if "msgs" in path.name)

    @pytest.mark.parametrize("case", others_slow(golden_cases()[::7], golden_cases()[::21]))
    def test_both_is_two_forecasts(self, case: str, golden: Path) -> None:
        store = open_datastore(golden / case / "datastore")
        options = g.options_of(load_expected(case)["open_args"])
        both = forecast_both(store, options)
        for truncate in (False, True):
            assert forecast(store, options, truncate=truncate).as_json() == both[truncate].as_json()


class TestDestroys:
    """What is intact and goes; against the golden stores, and what none of them shows."""

    @pytest.mark.parametrize("case", cases_by_kind(c for c in golden_cases() if "salvage" in load_expected(c)))
    def test_golden(self, case: str, golden: Path) -> None:
        expected = load_expected(case)
        if expected["setup"]:
            pytest.skip("cannot be read as it is")
        options = g.options_of(expected["open_args"])
        ours = forecast_both(open_datastore(golden / case / "datastore"), options, lookups=False)
        for mine, theirs in zip(ours, (expected["server_open"], expected["server_open_truncate"]), strict=True):
            if not theirs["started"]:
                continue
            destroyed = Ranges.union(loss.sequences for loss in mine.destroys if loss.channel == "alpha")
            messages = expected["salvage"]["messages"]["alpha"]
            intact = Ranges.of(messages["intact"] + messages.get("payload_intact_but_header_damaged", []))
            last = theirs.get("channels", {}).get("alpha", {}).get("last_seq", 0)
            assert destroyed == intact - Ranges.of([(0, last)])

    def test_nothing(self, store: Path) -> None:
        assert _forecast(store).destroys == _forecast(store, truncate=True).destroys == []

    def test_zeros_hide_messages(self, store: Path) -> None:
        file = store / "foo" / "msgs.3.dat"
        offset = s.read_index(file.with_suffix(".idx"))[4][1]
        file.with_suffix(".idx").unlink()
        file.write_bytes(file.read_bytes()[:offset] + bytes(8) + file.read_bytes()[offset:])
        (loss,) = _forecast(store).destroys
        assert (loss.how, loss.file, loss.at) == (Harm.CUT, "foo/msgs.3.dat", offset)
        assert (loss.sequences.pairs(), loss.records) == ([(25, 30)], 6)
        assert loss.sentence() == f"foo/msgs.3.dat is cut at offset {offset}: 6 intact records (sequences 25-30) lost"

    def test_a_failed_start_cuts_as_well(self, store: Path) -> None:
        s.write_slice(store, "afirst", 1, range(1, 6), index=False)
        file = store / "afirst" / "msgs.1.dat"
        file.write_bytes(file.read_bytes()[:4] + bytes(16) + file.read_bytes()[4:])
        (store / "foo" / "subs.dat").write_bytes(b"")
        result = _forecast(store)
        assert not result.starts
        assert [(loss.how, loss.sequences.pairs()) for loss in result.destroys] == [(Harm.CUT, [(1, 5)])]

    def test_zeros_in_a_log(self, store: Path) -> None:
        state = pb.SubState(id=1, client_id=b"c", durable_name=b"d", is_durable=True, last_sent=3)
        s.write_subs(store, "foo", (state, [4, 5]))
        subs = store / "foo" / "subs.dat"
        subs.write_bytes(subs.read_bytes()[:4] + bytes(8) + subs.read_bytes()[4:])
        (loss,) = _forecast(store).destroys
        assert (loss.how, loss.file, loss.records) == (Harm.CUT, "foo/subs.dat", 3)
        assert loss.sentence() == "foo/subs.dat is cut at offset 4: 3 intact records lost"

    def test_limits(self, store: Path) -> None:
        result = _forecast(store, limits=_limits(max_msgs=12))
        assert [(loss.how, loss.file, loss.sequences.pairs()) for loss in result.destroys] == [
            (Harm.REMOVED, "foo/msgs.1.dat", [(1, 10)])
        ]
        assert result.as_json()["destroys"][0]["sequences"] == [[1, 10]]

    def test_an_index_of_zeros(self, store: Path) -> None:
        file = store / "foo" / "msgs.3.idx"
        file.write_bytes(file.read_bytes()[: 4 + 32 * 7] + bytes(32) + file.read_bytes()[4 + 32 * 8 :])
        (loss,) = _forecast(store).destroys
        assert (loss.how, loss.at, loss.sequences.pairs()) == (Harm.ANEW, 28, [(28, 30)])
        text = "foo: sequences start over at 28; messages 28-30 on disk are out of the server's reach"
        assert loss.sentence() == text

    def test_a_server_that_began_anew_before(self, store: Path) -> None:
        s.write_slice(store, "foo", 3, [*range(21, 31), 1, 2, 3])
        for file in ("msgs.1.dat", "msgs.2.dat"):
            (store / "foo" / file).unlink()
        (loss,) = _forecast(store).destroys
        assert (loss.how, loss.at, loss.sequences.pairs()) == (Harm.ANEW, 4, [(21, 30)])

    def test_without_server_dat(self, store: Path) -> None:
        (store / "server.dat").unlink()
        (store / "linked").mkdir()
        s.write_slice(store, "gappy", 1, [1, 2, 5])
        old = _forecast(store).destroys
        assert [(loss.how, loss.channel, loss.at, loss.sequences.pairs()) for loss in old] == [
            (Harm.ANEW, "foo", 1, [(1, 30)]),
            (Harm.ANEW, "gappy", 1, [(1, 2), (5, 5)]),
        ]
        assert _forecast(store, version="0.25.6").destroys == []

    def test_a_linked_channel(self, store: Path, tmp_path: Path) -> None:
        s.write_slice(tmp_path / "elsewhere", "bar", 1, [7, 8])
        (store / "bar").symlink_to(tmp_path / "elsewhere" / "bar")
        (loss,) = _forecast(store).destroys
        assert (loss.how, loss.channel, loss.at, loss.sequences.pairs()) == (Harm.ANEW, "bar", 1, [(7, 8)])

    def test_positions_of_groups(self, store: Path) -> None:
        def member(number: int, group: bytes, client: bytes) -> tuple[pb.SubState, list[int]]:
            return pb.SubState(id=number, client_id=client, q_group=group, is_durable=True, last_sent=3), []

        s.write_clients(store, "here")
        s.write_subs(store, "foo", member(1, b"d:a", b"gone"), member(2, b"d:b", b"gone"), member(3, b"d:b", b"here"))
        (loss,) = _forecast(store).destroys
        assert (loss.how, loss.groups) == (Harm.GHOST, ("d:a",))
        text = "foo/subs.dat: position of durable queue group d:a deleted: no client of it is known"
        assert loss.sentence() == text
        # Of a group that others of are left, no position is lost; but what is pending with the deleted member is.
        s.write_subs(store, "foo", member(2, b"d:b", b"gone"), member(3, b"d:b", b"here"))
        found = _forecast(store)
        verdict = judge_start(found, verify(open_datastore(store)).outcomes)
        assert not found.destroys and verdict.ghosts == 1 and not verdict.harmless


def test_versions_that_do_otherwise(store: Path) -> None:
    assert len(forecast_versions(open_datastore(store), ServerOptions())) == 1
    index = store / "foo" / "msgs.3.idx"
    records = s.read_index(index)
    s.write_index(index, [*records[:-1], (*records[-1][:3], 0)])
    (old, _), (new, _) = forecast_versions(open_datastore(store), ServerOptions())
    assert (old.server_version, new.server_version) == ("0.23.2", "0.25.6")
    assert "foo/msgs.3.idx" in old.changes and "foo/msgs.3.idx" not in new.changes
