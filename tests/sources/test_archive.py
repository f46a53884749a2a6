"""The members of damaged archives: whatever is left of one is read, and the rest is named."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stantools.errors import StantoolsError
from stantools.sources import files
from stantools.sources.archive import Archive
from stantools.sources.door import recognise
from tests.conftest import others_slow

CONTENTS = {f"ds/c{number}/msgs.1.dat": random.Random(number).randbytes(300 * number) for number in range(1, 9)}


@pytest.fixture
def made(tmp_path: Path) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A zip, and where each member is in it, its local header included."""
    path = tmp_path / "whole.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in CONTENTS.items():
            archive.writestr(name, content)
        begins = [each.header_offset for each in archive.infolist()]
    data = path.read_bytes()
    ends = [*begins[1:], data.index(b"PK\x01\x02")]
    return data, dict(zip(CONTENTS, zip(begins, ends, strict=True), strict=True))


def read(path: Path) -> tuple[dict[str, bytes], Archive]:
    archive = Archive(path, "zip")
    return {member.name: b"".join(parts) for member, parts in archive.contents(lambda *_: True)}, archive


@pytest.mark.parametrize("change", ["cut", "zeros"])
@pytest.mark.parametrize("seed", others_slow(range(20), range(0, 20, 2)))
def test_a_zip_with_a_hole(change: str, seed: int, made, tmp_path: Path) -> None:
    """Members outside of the hole are whole, and each member that the hole touches is reported, if it has changed."""
    data, places = made
    chance = random.Random(seed)
    directory = max(end for _, end in places.values())
    begin, end = sorted(chance.sample(range(directory), 2))
    if seed < 3:  # the first header, or a part of it
        begin, end = 0, (4, 30, 200)[seed]
    elif chance.random() < 0.7:  # a small one
        end = min(end, begin + chance.randint(1, 40))
    path = tmp_path / "damaged.zip"
    path.write_bytes(data[:begin] + (bytes(end - begin) if change == "zeros" else b"") + data[end:])
    assert recognise(path).kind is files.ARCHIVE
    found, archive = read(path)
    assert found.keys() == CONTENTS.keys()
    for name, (first, after) in places.items():
        if after <= begin or end <= first:
            assert found[name] == CONTENTS[name], name
        elif found[name] != CONTENTS[name]:
            (flaw,) = (each for each in archive.damaged if each.startswith(f"{name}: "))
            assert flaw.isprintable() and len(flaw) < 200, flaw


def tar() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in CONTENTS.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return written.getvalue()


def zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(data))


@pytest.mark.parametrize(
    ("form", "compress", "size"),
    [
        ("gzip", gzip.compress, 8),
        ("bzip2", bz2.compress, 3),
        ("xz", lzma.compress, 12),
        ("zstd", zstd, 4),
    ],
)
def test_a_wrong_sum_at_the_end_is_told(
    form: str, compress: Callable[[bytes], bytes], size: int, tmp_path: Path
) -> None:
    """The sum comes after the end mark of the tar: every member is read before it."""
    path, good = tmp_path / "archive", compress(tar())
    for at in (None, *range(-size, -1)):
        data = bytearray(good)
        if at:
            data[at] ^= 0x10
        path.write_bytes(data)
        archive = Archive(path, form)
        found = {member.name: b"".join(parts) for member, parts in archive.contents(lambda *_: True)}
        assert found == CONTENTS and bool(archive.cut) == (at is not None), at


def test_a_zip_without_its_directory(made, tmp_path: Path) -> None:
    data, places = made
    path = tmp_path / "cut.zip"
    for size in (4, 29, 31, places["ds/c4/msgs.1.dat"][0] + 10, max(end for _, end in places.values()) + 10):
        path.write_bytes(data[:size])
        with pytest.raises(StantoolsError, match="directory at the end of the archive") as problem:
            read(path)
        assert "zip -FF" in problem.value.remedy
