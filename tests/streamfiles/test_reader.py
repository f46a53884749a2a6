"""Archives that are damaged, incomplete or made to do harm are said to be so."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stantools.streamfiles import framing, highwayhash, kernels, meta, reader
from stantools.streamfiles.framing import STORED, Framer, unframe
from stantools.streamfiles.layout import ArchiveError, OpenBlock
from stantools.streamfiles.meta import ConsumerState
from stantools.streamfiles.reader import ArchiveReader
from stantools.streamfiles.writer import ConsumerEntry, StreamArchive
from tests.streamfiles.making import batch, contents, numbered

CONFIG = {"subjects": ["foo.bar"]}


def framed(*parts: bytes, end: bytes = framing.END) -> bytes:
    return bytes(Framer(STORED).frame(b"".join(parts) + end))


def described(folder: str, inf: bytes, key: bytes, checksum: bytes = b"") -> bytes:
    content = checksum or meta.meta_sum(inf, key)
    return framing.whole_file(f"{folder}meta.inf", inf, 0) + framing.whole_file(f"{folder}meta.sum", content, 0)


STREAM = described("", meta.stream_meta("S", CONFIG, 0), highwayhash.stream_key("S"))


def block(index: int, sequences: Sequence[int], *, name: str = "", key: bytes = b"") -> bytes:
    out = np.zeros(10_000, np.uint8)
    of = batch(numbered(sequences), b"c")
    opened = OpenBlock(out, 9000, key or highwayhash.block_key("S", index))
    kernels.encode_records(of, 0, opened, False)
    return framing.whole_file(name or f"msgs/{index}.blk", out[: opened.position].tobytes(), 0)


def consumer(name: str, checksum: bytes = b"", inf: bytes = b"") -> bytes:
    content = inf or meta.consumer_meta(name, {}, 0)
    return described(f"obs/{name}/", content, highwayhash.consumer_key("S", name), checksum)


def read(data: bytes) -> ArchiveReader:
    found = ArchiveReader([data], "stream.tar.s2")
    contents(found)
    return found


def test_good() -> None:
    extra = framing.whole_file("msgs/index.db", b"x", 0) + framing.whole_file("msgs/1.idx", b"x", 0)
    found = read(framed(STREAM, block(1, [1, 2]), block(7, [4]), extra, consumer("c"), end=framing.END + bytes(9000)))
    assert (found.state.messages, found.state.last_seq, len(found.consumers)) == (3, 4, 1)


def test_damage() -> None:
    rows: list[tuple[list[bytes], str]] = [
        ([], "nothing is where meta.inf should be"),
        ([block(1, [1])], "msgs/1.blk is where meta.inf should be"),
        ([STREAM[:1024]], "nothing is where meta.sum should be"),
        ([described("", b"{}", bytes(32))], "no name of a stream"),
        ([described("", b'{"name":""}', bytes(32))], "no name of a stream"),
        ([described("", b'{"name":7}', bytes(32))], "no name of a stream"),
        ([described("", b'{"name":"\\ud800"}', bytes(32))], "no name of a stream"),
        ([described("", b"[]", bytes(32))], "not a JSON object"),
        ([described("", b'{"name":', bytes(32))], "not JSON"),
        ([described("", b'{"name":"\xff"}', bytes(32))], "not JSON"),
        ([described("", b"[" * 100_000, bytes(32))], "not JSON"),
        ([described("", b'{"name":"S"}', bytes(32), b"0" * 16)], "meta.sum does not belong"),
        ([described("", b'{"name":"S"}', highwayhash.stream_key("T"))], "meta.sum does not belong"),
        ([STREAM, block(2, [1]), block(1, [2])], "msgs/1.blk comes after block 2"),
        ([STREAM, block(1, [1]), block(1, [2])], "msgs/1.blk comes after block 1"),
        ([STREAM, block(1, [5]), block(2, [5])], "sequences in msgs/2.blk do not rise"),
        ([STREAM, block(1, [5], name="msgs/2.blk")], "msgs/2.blk has a record whose hash does not match at byte 0"),
        ([STREAM, framing.whole_file("msgs/1.blk", b"short", 0)], "msgs/1.blk ends within a record at byte 0"),
        ([STREAM, framing.whole_file("msgs/1.blk", bytes(99), 0)], "msgs/1.blk has a record with impossible sizes"),
        ([STREAM, framing.whole_file("../../etc/passwd", b"", 0)], "does not belong into an archive"),
        ([STREAM, framing.whole_file("msgs/01.blk", b"", 0)], "does not belong into an archive"),
        ([STREAM, framing.whole_file("obs/a/b/meta.inf", b"", 0)], "does not belong into an archive"),
        ([STREAM, consumer("c")[:1024]], "obs/c/meta.sum is missing"),
        ([STREAM, framing.whole_file("obs/c/o.dat", b"", 0)], "obs/c/meta.inf is missing"),
        ([STREAM, consumer("c", b"0" * 16)], "obs/c/meta.sum does not belong"),
        ([STREAM, consumer("c", inf=b"nothing")], "obs/c/meta.inf is not JSON"),
        ([STREAM, consumer("c"), framing.whole_file("obs/c/o.dat", b"\x16\x02", 0)], "obs/c/o.dat: .* no number"),
        ([STREAM, consumer("c"), consumer("c")], "obs/c/meta.inf occurs twice"),
    ]
    for parts, said in rows:
        with pytest.raises(ArchiveError, match=said) as caught:
            read(framed(*parts))
            pytest.fail(f"accepted: {(parts, said)!r}")
        assert caught.value.message.startswith("stream.tar.s2"), (parts, said)


def test_end() -> None:
    with pytest.raises(ArchiveError, match="512 bytes are missing"):
        read(framed(STREAM, end=b""))
    with pytest.raises(ArchiveError, match="bytes follow"):
        read(framed(STREAM, end=framing.END + bytes(5000) + b"x"))


def test_too_much_of_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MAX_CONSUMERS", 1000)
    with pytest.raises(ArchiveError, match="more than 1000 bytes"):
        read(framed(STREAM, *(consumer(f"c{number}") for number in range(10))))


def whole() -> bytes:
    of = StreamArchive("S", CONFIG, 0, origin=True, block_bytes=700)
    state = ConsumerState((1, 1), (5, 5), {2: (2, 0)}, {2: 1})
    entries = [ConsumerEntry("c", {"ack_wait": 5}, state)]
    return b"".join(map(bytes, of.pieces([batch(numbered([1, 2, 5, 6, 7, 8]))], lambda: entries, 9)))


def test_cut_anywhere() -> None:
    data = whole()
    read(data)
    for size in (*range(0, len(data), 97), len(data) - 1):
        with pytest.raises(ArchiveError):
            read(data[:size])


def test_changed_anywhere() -> None:
    """With right frames around it: either it is noticed, or what is read is the same but for padding and sizes."""
    plain = b"".join(bytes(part) for part in unframe([whole()], "x"))
    chance = random.Random(11)
    noticed = 0
    for _ in range(400):
        bad = bytearray(plain)
        for _ in range(chance.choice([1, 1, 3])):
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        try:
            found = read(framed(bytes(bad), end=b""))
        except ArchiveError:
            noticed += 1
        else:
            assert found.state.messages == 6
            assert found.stream == "S"
    assert noticed > 100


def test_configuration_is_kept() -> None:
    config: dict[str, Any] = ArchiveReader([whole()]).config
    assert config == json.loads(meta.stream_meta("S", CONFIG, 0))
