"""Comparison of JetStream directories: with themselves, with changed copies, and with a server that serves a copy."""

import shutil
from pathlib import Path

import pytest

from stantools.errors import UsageError
from stantools.migration.proof.stored_streams import compare_directories
from stantools.migration.salvaged_streams import prove_directory
from stantools.sources.door import open_source
from stantools.store.ranges import Ranges
from stantools.streamfiles import kernels
from stantools.streamfiles.highwayhash import block_key
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.survey import StreamSurvey
from tests.natsclient import jetstream
from tests.servers import NEWEST, NatsServer


@pytest.fixture
def pair(golden_jetstream: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A golden directory, and a copy of it."""
    place = golden_jetstream / "ok_consumers15" / "store" / "jetstream"
    return place, Path(shutil.copytree(place, tmp_path / "copy"))


def compared(pair: tuple[Path, Path], *patterns: str) -> list[tuple[str, str | None, int | None]]:
    found = compare_directories(*map(open_source, pair), patterns)
    return [(each.code, each.channel, each.seq) for each in found.findings]


def test_equal(pair: tuple[Path, Path]) -> None:
    assert compared(pair) == []
    with pytest.raises(UsageError, match="no stream of either"):
        compared(pair, "NOTHING")


def rewritten(directory: Path, row: int, **changes: bytes) -> int:
    """Writes a message of the first block with another subject or payload and the right hash; returns its sequence."""
    path = next(directory.glob("*/streams/ORDERS/msgs/1.blk"))
    data, key = path.read_bytes(), block_key("ORDERS", 1)
    batch = RecordBatch.read(data, 0, key)[0].messages
    start = int(batch.offset[row])
    end = start + int(batch.length[row])
    sequence, time, headers = int(batch.sequence[row]), int(batch.timestamp[row]), batch.header(row)
    subject, payload = changes.get("subject", batch.subject(row)), changes.get("payload", batch.data(row))
    record = kernels.encode_record(sequence, time, subject, headers, payload, key)
    path.write_bytes(data[:start] + record + data[end:])
    return sequence


def test_messages(pair: tuple[Path, Path]) -> None:
    other = rewritten(pair[1], 3, payload=b"another")
    subject = rewritten(pair[1], 5, subject=b"orders.elsewhere")
    assert sorted(compared(pair)) == sorted(
        [("message-payload", "ORDERS", other), ("message-subject", "ORDERS", subject)]
    )


def test_losses(pair: tuple[Path, Path]) -> None:
    """What only one of them has is told by sequence; a stream or consumer that only one has as well."""
    blocks = sorted(pair[1].glob("*/streams/ORDERS/msgs/*.blk"))
    blocks[0].unlink()
    shutil.rmtree(next(pair[1].glob("*/streams/ORDERS/obs/push1")))
    one, other = (StreamSurvey(open_source(each).stream("ORDERS")).intact for each in pair)
    found = compared(pair)
    assert ("message-missing", "ORDERS", (one - other).first) in found
    assert ("consumer-missing", "ORDERS", None) in found
    assert compared((pair[1], pair[0]))[0][0] == "message-extra"
    shutil.rmtree(next(pair[1].glob("*/streams/ORDERS")))
    (pair[1] / "$G" / "streams" / "OTHER" / "msgs").mkdir(parents=True)
    assert ("channel-missing", "ORDERS", None) in compared(pair)


async def test_server(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A server that serves the copy has every message; after a deletion one is missing."""
    with NatsServer(tmp_path / "server", NEWEST) as server:
        pass
    shutil.rmtree(server.store_dir / "jetstream", ignore_errors=True)
    shutil.copytree(pair[1], server.store_dir / "jetstream")
    source = open_source(pair[0])
    intact = StreamSurvey(source.stream("ORDERS")).intact
    with NatsServer(tmp_path / "server", NEWEST) as server:
        async with jetstream(server.url) as js:
            proof = await prove_directory(js, source, "ORDERS")
            assert proof.messages == intact.count()
            assert not [each for each in proof.findings if each.code.startswith("message-")]
            await js.delete_message("ORDERS", intact.first)
            proof = await prove_directory(js, source, "ORDERS")
            missing = [each.seq for each in proof.findings if each.code == "message-missing"]
            assert missing == [intact.first] and Ranges.of([(intact.first, intact.first)])
