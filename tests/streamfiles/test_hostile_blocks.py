"""Blocks of impossible sizes: holes are skipped, and no more is taken into memory than a server's block may have."""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc
from pathlib import Path

import pytest

from stantools.inspection.stream_forecast.directory_forecast import forecast_directory
from stantools.inspection.stream_forecast.versions import SERVER_RULES
from stantools.store.mapping import mapped
from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash, kernels, s2
from stantools.streamfiles.blocks import block_content, number_of_records, strict_content
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.meta import meta_sum
from stantools.streamfiles.sealing import AssetKey, StreamCipher
from stantools.streamfiles.survey import StreamSurvey

CONFIG = {"name": "BIG", "subjects": ["s.>"], "retention": "limits", "storage": "file", "num_replicas": 1}
KEY = highwayhash.block_key("BIG", 1)


def record(sequence: int, payload: bytes = b"x" * 50) -> bytes:
    text = sequence.to_bytes(8, "little") + (10**18).to_bytes(8, "little")
    size, subject = 33 + len(payload), b"s.a"
    tail = kernels.hash64(text + subject + payload, KEY).to_bytes(8, "little")
    return size.to_bytes(4, "little") + text + len(subject).to_bytes(2, "little") + subject + payload + tail


def sparse(path: Path, *parts: tuple[int, bytes], size: int) -> Path:
    with path.open("wb") as file:
        for at, content in parts:
            file.seek(at)
            file.write(content)
        file.truncate(size)
    return path


def test_a_sparse_block_of_64_gigabytes(tmp_path: Path) -> None:
    """The records before and after a hole are found, by a survey and by a forecast, without reading the hole."""
    folder = tmp_path / "jetstream/$G/streams/BIG"
    (folder / "msgs").mkdir(parents=True)
    data = json.dumps(CONFIG).encode()
    (folder / "meta.inf").write_bytes(data)
    (folder / "meta.sum").write_bytes(meta_sum(data, highwayhash.stream_key("BIG")))
    parts = (0, b"".join(map(record, range(1, 11)))), (32 << 30, b"".join(map(record, range(11, 21))))
    sparse(folder / "msgs/1.blk", *parts, size=64 << 30)
    stream = StoredStream(folder, "$G")
    begin = time.process_time()
    tracemalloc.start()
    survey = StreamSurvey(stream)
    found = forecast_directory([stream], tmp_path, SERVER_RULES["2.15"], survey=lambda _: survey)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
    assert time.process_time() - begin < 10
    assert survey.intact == Ranges.of([(1, 20)])
    assert found.streams["$G/BIG"].loss.destroyed == Ranges.of([(11, 20)])


def framed(*chunks: bytes) -> bytes:
    """Stored chunks, each with its checksum."""
    out = s2.IDENTIFIER
    for each in chunks:
        crc = kernels.crc32c(each)
        checksum = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        out += b"\1" + (4 + len(each)).to_bytes(3, "little") + checksum.to_bytes(4, "little") + each
    return out


@pytest.mark.parametrize("form", ["encrypted", "compressed"])
def test_a_block_that_has_to_be_in_memory(form: str, tmp_path: Path) -> None:
    key = AssetKey(StreamCipher.CHACHA, bytes(32), bytes(24)) if form == "encrypted" else None
    records = b"".join(map(record, range(1, 11)))
    if key:
        content = key.decrypt_block(records)  # the cipher is its own inverse
    else:
        content = b"cmp\1" + len(records).to_bytes(2, "little") + framed(records[:-8]) + records[-8:]
    path = sparse(tmp_path / "1.blk", (0, content), size=16 << 30)
    tracemalloc.start()
    with mapped(path) as raw:
        found = block_content(raw, key)
        assert bytes(found.data[: len(records)]) == records
        assert len(found.data) + len(found.surplus) <= s2.MAX_CONTENT
        if key:
            assert len(strict_content(raw, key, sized=True)) <= s2.MAX_CONTENT
        else:
            with pytest.raises(ArchiveError, match="corrupt input"):
                strict_content(raw, key, sized=False)
    assert tracemalloc.get_traced_memory()[1] < 4 * s2.MAX_CONTENT
    tracemalloc.stop()


def test_zeros_after_compressed_content_are_a_flaw(tmp_path: Path) -> None:
    records = b"".join(map(record, range(1, 11)))
    (tmp_path / "BIG/msgs").mkdir(parents=True)
    content = b"cmp\1" + len(records).to_bytes(2, "little") + framed(records[:-8]) + records[-8:]
    sparse(tmp_path / "BIG/msgs/1.blk", (0, content), size=1 << 20)
    survey = StreamSurvey(StoredStream(tmp_path / "BIG", "$G"))
    assert survey.intact == Ranges.of([(1, 10)])
    (flaw,) = (each for each in survey.flaws if each.kind is FlawKind.BLOCK_COMPRESSED)
    assert "zeros follow" in flaw.detail


def test_content_that_grows_beyond_any_block() -> None:
    chunk = b"\0" * (1 << 20)
    with pytest.raises(ValueError, match="holds more than"):
        s2.unframe(framed(*[chunk] * 3), limit=1 << 20)
    assert len(s2.unframe(framed(*[chunk] * 3))) == 3 << 20
    assert len(s2.unframe_leniently(framed(*[chunk] * 3), 0, 4 << 20, 1 << 20)[0]) <= 2 << 20


def test_keys_are_tried_up_to_a_limit() -> None:
    """A block with the records of another number costs no more than a share of the keys."""
    assert number_of_records(record(1), ["A", "B"], itertools.count(1), 1000) is None
    assert number_of_records(record(1), ["A", "BIG"], itertools.chain([1], itertools.count(2)), 2) == ("BIG", 1)
    assert number_of_records(record(1), ["BIG"], [7]) == ("BIG", 1)
