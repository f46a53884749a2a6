from __future__ import annotations

import pytest

from stantools.format.crc import Crc
from stantools.format.envelope import encode
from stantools.format.layout import ScanStop
from stantools.format.proto import store_pb2 as pb
from stantools.store.serverinfo import (
    ServerFile,
    ServerOutcome,
    encode_server_file,
    new_server_info,
    read_server_info,
    written_by_0_1,
)
from tests.conftest import GOLDEN, golden_cases, load_expected
from tests.store.golden_logs import crc_of, logs, mutate, mutations, server_json, stores

CRC = Crc()
HEADER = b"\x01\0\0\0"


def server_error(file: ServerFile) -> str:
    """The error of the server's last log line, for a store at `<store>`."""
    name = '"server.dat"' if file.at_open else '"<store>/server.dat"'
    return f"unable to recover server file {name}: {file.error}" if file.error else ""


def read(data: bytes | None) -> ServerFile:
    return read_server_info(None if data is None else memoryview(data), CRC)


def test_the_file_of_the_specification() -> None:
    data = encode_server_file(new_server_info("test-cluster"), CRC)
    assert len(data) == 208
    assert data[:12] == HEADER + bytes.fromhex("c4000000f42887ff")
    file = read(data)
    assert file.outcome is ServerOutcome.RECOVERED
    assert file.info == new_server_info(b"test-cluster")
    assert not file.rewritten


def test_every_row_of_the_specification() -> None:
    rows: list[tuple[bytes | None, ServerOutcome, str]] = [
        (None, ServerOutcome.ABSENT, ""),
        (HEADER, ServerOutcome.ABSENT, ""),
        (HEADER + b"\x05\0\0\0abcd", ServerOutcome.ABSENT, ""),
        (b"", ServerOutcome.REFUSED, "unable to verify file version: EOF"),
        (b"\x01\0", ServerOutcome.REFUSED, "unable to verify file version: unexpected EOF"),
        (b"\x02\0\0\0", ServerOutcome.REFUSED, "unsupported file version: 2 (supports [1..1])"),
        (HEADER + b"\x05\0\0", ServerOutcome.REFUSED, "unexpected EOF"),
        (HEADER + b"\x05\0\0\0abcdx", ServerOutcome.REFUSED, "unexpected EOF"),
        (HEADER + bytes(7), ServerOutcome.REFUSED, "unexpected EOF"),
        (HEADER + bytes(8), ServerOutcome.REFUSED, "end of file padded with zeros"),
        (HEADER + bytes(800), ServerOutcome.REFUSED, "end of file padded with zeros"),
        (
            HEADER + b"\0\0\0\0\x01\0\0\0",
            ServerOutcome.REFUSED,
            "corrupted data, expected crc to be 0x00000001, got 0x00000000",
        ),
        (HEADER + encode(b"\x0c", CRC), ServerOutcome.REFUSED, "proto: ServerInfo: wiretype end group for non-group"),
        (
            HEADER + encode(b"\x0a\x01a", CRC) + b"x",
            ServerOutcome.REFUSED,
            "incorrect file size, expected 15 bytes, got 16 bytes",
        ),
    ]
    for data, outcome, error in rows:
        file = read(data)
        assert (file.outcome, file.error) == (outcome, error), (data, outcome, error)


def test_without_crc_check() -> None:
    data = HEADER + encode(b"\x0a\x01a", CRC)[:-1] + b"b"
    assert read(data).stop is ScanStop.BAD_CRC
    unchecked = read_server_info(memoryview(data), CRC.unchecked)
    assert unchecked.outcome is ServerOutcome.RECOVERED
    assert unchecked.info == pb.ServerInfo(cluster_id=b"b")


def test_old_stores() -> None:
    info = new_server_info("c")
    info.sub_close = b""
    assert read(encode_server_file(info, CRC)).rewritten
    payload = info.SerializeToString()
    first_release = HEADER + len(payload).to_bytes(4, "little") + payload
    assert written_by_0_1(memoryview(first_release))
    for later in (encode_server_file(info, CRC), HEADER, b"", first_release[:-1]):
        assert not written_by_0_1(memoryview(later))


@pytest.mark.golden
def test_golden_files_re_serialise_to_the_same_bytes() -> None:
    for case in stores():
        crc = crc_of(case)
        for path in logs(case, "server.dat"):
            data = path.read_bytes()
            file = read_server_info(memoryview(data), crc)
            assert not written_by_0_1(memoryview(data)), case
            if file.outcome is ServerOutcome.RECOVERED:
                assert file.info is not None
                assert encode_server_file(file.info, crc) == data, case
                assert bool(file.info.node_id) == (case == "clustered"), case


@pytest.mark.golden
def test_golden_stores() -> None:
    for case in golden_cases():
        expected = load_expected(case)
        path = GOLDEN / case / "datastore" / "server.dat"
        file = read_server_info(memoryview(path.read_bytes()) if path.exists() else None, crc_of(case))
        opened = expected["server_open"]
        error = opened.get("error") or ""
        assert server_error(file) == (error if "server file" in error else ""), case
        assert file.reported == any('Server file "' in line for line in opened["log"]), case
        if "server_info" in expected and file.outcome is ServerOutcome.RECOVERED:
            assert file.info is not None
            assert server_json(file.info) == expected["server_info"], case


@pytest.mark.golden
def test_golden_mutations() -> None:
    seen = 0
    for case, mutation, path in mutations("server.dat"):
        expected = load_expected(case)
        file = read(mutate(path.read_bytes(), mutation))
        outcome = expected["outcomes"][mutation["server_open"]]
        assert outcome["started"] == (file.outcome is not ServerOutcome.REFUSED), mutation
        errors = [line for line in outcome["log"] if "Failed to start" in line]
        assert [f"[FTL] STREAM: Failed to start: {server_error(file)}"] * len(errors) == errors, mutation
        seen += 1
    assert seen > 40
