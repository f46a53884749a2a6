from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stantools.errors import RefusedError, StoreUnreadableError, StoreUnwritableError
from stantools.migration.plan.choices import DurablesChoice
from stantools.migration.plan.overrides import Override
from stantools.migration.targets.directories import BackupDirectory
from stantools.migration.targets.file_destination import check_backup, prove_backup
from stantools.sources.jetstream import ARCHIVE, REQUEST
from tests.conftest import load_expected
from tests.migration.facts import facts_of
from tests.migration.offline.officialcli import restore
from tests.migration.offline.streams import PENDING, ROWS, facts, prepared, prepared_golden, small_store, wanted
from tests.migration.reading import consumers_of, read_stream
from tests.migration.test_golden import compare, compare_consumers
from tests.trees import dated

GOLDEN = [
    "basic",
    "durables",
    "gap_filled",
    "gap_truncated_slice",
    "limits_msgs",
    "encrypted_aes",
    "dmg_payload_flip_noidx",
]


async def test_the_official_command_line_restores_them(each_server: Any, tmp_path: Path) -> None:
    results = [BackupDirectory(tmp_path / "out").place(stream) for stream in prepared(small_store(tmp_path / "store"))]

    for result in results:
        answer = await restore(each_server.url, result.directory)
        assert "error" not in answer, answer
        state = answer["state"]
        assert (state["messages"], state["bytes"]) == (result.state.messages, result.state.bytes)
        assert (state["first_seq"], state["last_seq"]) == (result.state.first_seq, result.state.last_seq)
        channel = result.stream.replace("_", ".")
        assert facts(await read_stream(each_server.url, result.stream)) == wanted(channel, ROWS[channel])
    consumer = (await consumers_of(each_server.url, "orders"))["dur"]
    assert consumer.delivered.stream_seq == 300
    assert consumer.ack_floor.stream_seq == PENDING[0] - 1
    assert consumer.num_ack_pending == len(PENDING)


async def test_golden_stores_by_way_of_backups(
    each_server: Any, golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    for case in GOLDEN:
        facts = facts_of(load_expected(case))
        streams = prepared_golden(golden_copy(case), case, stream_prefix=case, subject_prefix=f"{case}.")
        for stream in streams:
            result = BackupDirectory(tmp_path / "out").place(stream)
            answer = await restore(each_server.url, result.directory)
            assert "error" not in answer, answer
            assert answer["state"]["last_seq"] == stream.source.last
            name = stream.plan.parts[0].channel
            await compare_consumers(each_server.url, stream.plan, facts[name])
            await compare(each_server.url, stream.plan, facts[name], f"{case}.{name}")


def test_the_request_says_all_that_counts(tmp_path: Path) -> None:
    *_, stream = prepared(small_store(tmp_path / "store"))
    result = BackupDirectory(tmp_path / "out").place(stream)
    assert sorted(path.name for path in result.directory.iterdir()) == [REQUEST, ARCHIVE]
    request = json.loads((result.directory / REQUEST).read_bytes())
    assert request["state"] == result.state.as_json() | {"consumer_count": 1}
    # A field that is missing means something else to the official command line than to servers.
    assert request["config"]["storage"] == "file"
    assert request["config"]["max_msgs"] == request["config"]["max_bytes"] == -1
    assert request["config"]["subjects"] == ["orders"]
    assert request["config"]["metadata"] == {"stantools.channel": "orders"}


def test_what_is_there_is_compared_and_left_alone(tmp_path: Path) -> None:
    store, out = small_store(tmp_path / "store"), tmp_path / "out"
    first = [BackupDirectory(out).place(stream) for stream in prepared(store)]
    before = dated(out)
    again = [BackupDirectory(out).place(stream) for stream in prepared(store)]
    assert dated(out) == before
    assert [each.present for each in first] == [False] * 3
    assert [each.present for each in again] == [True] * 3
    assert [each.state for each in again] == [each.state for each in first]


def test_another_task_makes_the_directory_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, mkdir = tmp_path / "out", Path.mkdir

    def late(path: Path, *arguments: Any, **more: Any) -> None:
        if path == out:
            mkdir(path, exist_ok=True)
        mkdir(path, *arguments, **more)

    [first, *_] = prepared(small_store(tmp_path / "store"))
    monkeypatch.setattr(Path, "mkdir", late)
    assert not BackupDirectory(out).place(first).present


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda seq, ts, reply, data: (seq, ts + 1, reply, data), "1600000000130456811"),
        (lambda seq, ts, reply, data: (seq, ts, b"x", data), "Nats-Streaming-Reply"),
        (lambda seq, ts, reply, data: (seq, ts, reply, data[:-1] + b"x"), "SHA-256"),
        (lambda seq, ts, reply, data: (seq + 1, ts, reply, data), "1 message of stream one: 8"),
    ],
)
def test_the_backup_of_something_else_is_refused(tmp_path: Path, change: Callable[..., Any], detail: str) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    BackupDirectory(tmp_path / "out").place(stream)
    before = dated(tmp_path / "out")
    [other] = prepared(small_store(tmp_path / "other", {"one": [change(*row) for row in ROWS["one"]]}))
    findings = prove_backup(tmp_path / "out/one", other).findings
    assert findings
    assert detail in " ".join(finding.detail for finding in findings)
    with pytest.raises(RefusedError, match="holds a different backup"):
        BackupDirectory(tmp_path / "out").place(other)
    assert dated(tmp_path / "out") == before


def test_other_consumers_and_configurations_are_seen(tmp_path: Path) -> None:
    *_, stream = prepared(small_store(tmp_path / "store"))
    result = BackupDirectory(tmp_path / "out").place(stream)
    *_, limited = prepared(tmp_path / "store", consumers=DurablesChoice.PUSH)
    codes = {finding.code for finding in prove_backup(result.directory, limited).findings}
    assert codes == {"consumer-config"}
    request = json.loads((result.directory / REQUEST).read_bytes())
    request["config"]["max_age"] = 5
    (result.directory / REQUEST).write_text(json.dumps(request))
    [finding] = prove_backup(result.directory, stream).findings
    assert finding.code == "stream-config"
    assert "max_age is 5 instead of 0" in finding.detail


async def test_many_channels_in_one_stream(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """Numbered anew, with their origin as headers, and the durable translated."""
    store = small_store(tmp_path / "store")
    [stream] = prepared(store, overrides=(Override(">", stream="ALL"),))
    result = BackupDirectory(tmp_path / "out").place(stream)
    assert BackupDirectory(tmp_path / "out").place(stream).present
    server = start_server()
    await restore(server.url, result.directory)
    seen = await read_stream(server.url, "ALL")
    assert [message.sequence for message in seen] == list(range(1, sum(map(len, ROWS.values())) + 1))
    for channel, rows in ROWS.items():
        found = [m for m in seen if m.headers["Nats-Streaming-Channel"] == channel]
        assert [(int(m.headers["Nats-Streaming-Sequence"]), m.timestamp, m.data) for m in found] == [
            (sequence, timestamp, data) for sequence, timestamp, _, data in rows
        ]
    assert (await consumers_of(server.url, "ALL"))["dur"].num_ack_pending == len(PENDING)
    [exact, *_] = prepared(store)
    object.__setattr__(exact.plan, "name", "ALL")
    assert {f.code for f in prove_backup(result.directory, exact).findings} >= {"message-missing", "message-extra"}


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    result = BackupDirectory(tmp_path / "out").place(stream)
    archive = result.directory / ARCHIVE
    whole = archive.read_bytes()
    assert check_backup(result.directory).findings == []
    for position in range(0, len(whole), 37):
        archive.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        assert [f.code for f in check_backup(result.directory).findings] == ["archive-damaged"], position
    for size in range(0, len(whole), 101):
        archive.write_bytes(whole[:size])
        assert [f.code for f in check_backup(result.directory).findings] == ["archive-damaged"], size
    with pytest.raises(RefusedError, match="holds a different backup"):
        BackupDirectory(tmp_path / "out").place(stream)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"config": {}}', '{"config": [], "state": {}}', "[" * 5000])
def test_damaged_requests_are_found(tmp_path: Path, text: str) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    result = BackupDirectory(tmp_path / "out").place(stream)
    (result.directory / REQUEST).write_text(text)
    assert [(f.code, f.file) for f in check_backup(result.directory).findings] == [("archive-damaged", REQUEST)]
    assert prove_backup(result.directory, stream).findings


def test_a_request_for_another_archive_is_found(tmp_path: Path) -> None:
    streams = prepared(small_store(tmp_path / "store"))
    one, two, _ = (BackupDirectory(tmp_path / "out").place(stream).directory for stream in streams)
    (one / REQUEST).write_bytes((two / REQUEST).read_bytes())
    [finding] = check_backup(one).findings
    assert finding.code == "archive-damaged"
    assert "it is for stream 'one', the archive holds 'far_away'; messages is 1, in the archive 4" in finding.detail


def test_places_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    (tmp_path / "out/one").mkdir(parents=True)
    (tmp_path / "out/one/precious").write_text("x")
    with pytest.raises(RefusedError, match=r"is not a backup: it has no backup\.json"):
        BackupDirectory(tmp_path / "out").place(stream)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnwritableError):
        BackupDirectory(tmp_path / "file").place(stream)
    with pytest.raises(StoreUnwritableError):
        BackupDirectory(tmp_path / "no/such/place").place(stream)
    with pytest.raises(StoreUnreadableError, match=r"backup\.json: cannot be read"):
        check_backup(tmp_path / "nothing")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(RefusedError, match="10 bytes are free"):
        BackupDirectory(tmp_path / "full").place(stream)
    assert not (tmp_path / "full").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    written = []

    def full(descriptor: int, data: bytes) -> None:
        written.append(len(data))
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("stantools.migration.targets.directories.write_all", full)
    with pytest.raises(StoreUnwritableError, match="No space left on device") as raised:
        BackupDirectory(tmp_path / "out").place(stream)
    assert "free some space" in raised.value.remedy
    assert list((tmp_path / "out").iterdir()) == []


def test_names_that_are_no_directories(tmp_path: Path) -> None:
    [stream] = prepared(small_store(tmp_path / "store", {"one": ROWS["one"]}))
    for name in ("../x", "a/b", "", ".", "a b"):
        object.__setattr__(stream.plan, "name", name)
        with pytest.raises(RefusedError, match="name"):
            BackupDirectory(tmp_path / "out").place(stream)
    assert not (tmp_path / "out").exists()


async def test_an_empty_channel_with_a_last_sequence(
    golden_copy: Callable[[str], Path], each_server: Any, tmp_path: Path
) -> None:
    """All messages are lost, and the index still names them: the stream is empty and goes on behind them."""
    store = golden_copy("basic")
    for data in store.glob("*/msgs.*.dat"):
        data.write_bytes(data.read_bytes()[:4])
    streams = [stream for stream in prepared_golden(store, "basic") if stream.source.last]
    assert streams
    for stream in streams:
        assert not stream.source.count
        result = BackupDirectory(tmp_path / "out").place(stream)
        answer = await restore(each_server.url, result.directory)
        assert "error" not in answer, answer
        assert answer["state"]["messages"] == 0
        assert answer["state"]["last_seq"] == stream.source.last
        assert BackupDirectory(tmp_path / "out").place(stream).present
