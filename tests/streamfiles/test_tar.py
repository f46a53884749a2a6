"""The tar in an archive, against the one of the standard library."""

from __future__ import annotations

import io
import random
import tarfile

import pytest

from stantools.streamfiles import framing
from stantools.streamfiles.framing import ByteSource, file_header, read_files, whole_file
from stantools.streamfiles.layout import ArchiveError

NAMES = ("meta.inf", "msgs/1.blk", "obs/é/o.dat", f"obs/{'n' * 100}/meta.inf", f"obs/{'n' * 255}/meta.inf")


def read(data: bytes) -> list[tuple[str, bytes]]:
    return [(file.name, bytes(file.content)) for file in read_files(ByteSource(iter([data]), "the archive"))]


def test_header_of_a_block_has_one_unit() -> None:
    for modified in (-(1 << 40), 0, 1 << 33, 1 << 40):
        assert len(file_header("msgs/123456789.blk", 40 << 20, modified)) == framing.UNIT


def test_written_files_are_tar() -> None:
    files = [(name, bytes(size)) for size, name in enumerate(NAMES, 510)]
    data = b"".join(whole_file(name, content, 1_600_000_000) for name, content in files) + framing.END
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        members = archive.getmembers()
        found = []
        for member in members:
            content = archive.extractfile(member)
            assert content is not None
            found.append((member.name, content.read()))
    assert found == files
    assert {(member.mtime, member.mode, member.uname) for member in members} == {(1_600_000_000, 0o600, "nats")}
    assert read(data) == files


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_reads_what_others_write(form: int) -> None:
    file = io.BytesIO()
    names = [name for name in NAMES if form == tarfile.PAX_FORMAT or ("é" not in name and len(name) < 200)]
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name[:1].encode() * len(name)))
    assert read(file.getvalue()) == [(name, name[:1].encode() * len(name)) for name in names]


def patched(header: bytes, place: int, new: bytes) -> bytes:
    """A header with other bytes and the checksum that goes with them."""
    bad = bytearray(header)
    bad[place : place + len(new)] = new
    bad[148:156] = b" " * 8
    bad[148:156] = b"%06o\0 " % sum(bad)
    return bytes(bad)


HEADER = file_header("meta.inf", 5, 0)


def test_damage() -> None:
    rows: list[tuple[bytes, str]] = [
        (b"", "512 bytes are missing"),
        (bytes(512), "512 bytes are missing"),
        (bytes(512) + HEADER, "empty header"),
        (HEADER, "5 bytes are missing"),
        (HEADER + b"hello", "507 bytes are missing"),
        (b"x" + HEADER[1:], "wrong checksum"),
        (patched(HEADER, 124, b"zzzzzzzzzzz"), "no size"),
        (patched(HEADER, 124, b"77777777777"), "8589934591 bytes"),
        (patched(HEADER, 124, b"\x80" + b"\xff" * 11), "no size"),
        (patched(HEADER, 156, b"5"), "only files"),
        (patched(HEADER, 156, b"2"), "only files"),
        (patched(patched(HEADER, 156, b"x"), 124, b"00000040001"), "extended tar header"),
    ]
    for data, said in rows:
        with pytest.raises(ArchiveError, match=said):
            read(data)
            pytest.fail(f"accepted: {(data, said)!r}")


def test_extended_header_without_a_path() -> None:
    rows: list[bytes] = [b"", b"5", b"x path=y\n", b"99 path=y\n", b"2 \n", b"0 path=\n", b"12 other=abc"]
    for records in rows:
        extension = patched(patched(HEADER, 156, b"x"), 124, b"%011o" % len(records))
        filled = bytes(framing.padding(len(records)))
        data = extension + records + filled + whole_file("meta.inf", b"hello", 0) + framing.END
        assert read(data) == [("meta.inf", b"hello")], records


def test_anything_else_is_said_to_be_damaged() -> None:
    chance = random.Random(5)
    whole = whole_file(f"obs/{'n' * 200}/meta.inf", b"hello" * 10, 0) + whole_file("obs/c/o.dat", b"x", 0) + framing.END
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read(bytes(data[: chance.randrange(len(data) + 1)]))
        except ArchiveError as problem:
            assert "archive" in problem.message
