"""Streams restored from archives: every version must show them as they are, with all kinds of gaps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from stantools.migration.proof.stream_proof import ExpectedStream, Proof
from stantools.migration.server.restore import restore
from stantools.nats import readback
from stantools.streamfiles.writer import StreamArchive, measure
from tests.migration.stores import T0, Record, opened, records, write_store
from tests.natsclient import jetstream


async def restored(server: Any, root: Path, *, last: int | None = None, origin: bool = False) -> Proof:
    """Restores the only channel of a store and proves it."""
    (channel,) = opened(root).channels

    class Source:
        renumbered = False
        parts = ((channel, channel.raw_name),)
        count, first, last_known = channel.count, channel.first, channel.last
        last = last_known

        def read(self, *, after: int = 0, until: int | None = None) -> Any:
            return channel.read(after=after, until=until)

        def position(self, channel: bytes, sequences: Any) -> list[int]:
            return list(sequences)

    source = Source()
    if last is not None:
        source.last = last
    config = {"name": "S", "subjects": [channel.name], "storage": "file", "num_replicas": 1}
    async with jetstream(server.url) as js:
        archive = StreamArchive("S", config, T0, origin=origin, compression="stored")
        state = measure(source.read(), origin=origin, last=source.last)
        pieces = archive.pieces(source.read(), lambda: (), source.last)
        await restore(js, "S", config, {**state.as_json(), "consumer_count": 0}, pieces)
        return await ExpectedStream("S", source, origin, False).prove(js)


def with_gaps(giant: int) -> list[Record]:
    rows = [*records(20, first=1001), *records(30, first=1031), *records(10, first=200_000), *records(5, first=giant)]
    rows[3] = (rows[3][0], rows[3][1], b"_INBOX.reply", rows[3][3])
    rows[4] = (rows[4][0], rows[4][1], b"", b"")
    return [*rows, (giant + 100, 1, b"r", bytes(range(256)) * 3000)]


@pytest.mark.parametrize("origin", [False, True])
async def test_gaps(each_server: Any, tmp_path: Path, origin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leading, inner and giant gaps, replies, times that go back, an empty message and a large one."""
    # Whoever waited would wait for long.
    monkeypatch.setattr(readback, "_EXPIRES", 60)
    monkeypatch.setattr(readback, "_SILENCE", 60)
    started = time.monotonic()
    # Servers of 2.9 walk through a gap.
    giant = 10**7 if each_server.version.startswith("2.9.") else 2**40
    proof = await restored(each_server, write_store(tmp_path / "s", {"foo.bar": with_gaps(giant)}), origin=origin)
    assert proof.findings == []
    assert proof.messages == 66
    # Not by waiting for messages that older servers believe to be still there.
    assert time.monotonic() - started < 30


async def test_a_last_sequence_without_a_message(each_server: Any, tmp_path: Path) -> None:
    proof = await restored(each_server, write_store(tmp_path / "s", {"foo": records(10)}), last=25)
    assert proof.findings == []
    assert proof.messages == 10


async def test_an_empty_channel_with_a_last_sequence(each_server: Any, tmp_path: Path) -> None:
    assert (await restored(each_server, write_store(tmp_path / "s", {"foo": []}), last=77)).findings == []
