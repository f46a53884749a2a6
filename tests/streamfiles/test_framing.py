"""Frames around an archive (jetstream-migration.md sections 7 and 16)."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from stantools.errors import UsageError
from stantools.format.crc import CASTAGNOLI, Crc
from stantools.streamfiles import framing
from stantools.streamfiles.framing import SNAPPY, STORED, Framer, unframe
from stantools.streamfiles.layout import ArchiveError

HELLO = bytes.fromhex("ff060000734e61507059 01 090000 bb1f1c19 68656c6c6f".replace(" ", ""))


def plain(data: bytes) -> bytes:
    return b"".join(bytes(part) for part in unframe([data], "the archive"))


def chunk(kind: int, data: bytes, crc_of: bytes | None = None) -> bytes:
    crc = Crc(CASTAGNOLI)(data if crc_of is None else crc_of)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return bytes([kind]) + (len(data) + 4).to_bytes(3, "little") + masked.to_bytes(4, "little") + data


class TestFrame:
    def test_vector(self, used_kernel: ModuleType) -> None:
        assert bytes(Framer(STORED).frame(b"hello")) == HELLO

    def test_crc(self, kernel: ModuleType) -> None:
        assert kernel.crc32c(b"hello") == 0x9A71BB4C
        assert kernel.crc32c(b"") == 0

    @pytest.mark.parametrize("size", [0, 1, 31, 32, 65535, 65536, 65537, 200_000])
    def test_sizes(self, used_kernel: ModuleType, size: int) -> None:
        data = random.Random(size).randbytes(size)
        framer = Framer(STORED)
        first, second = bytes(framer.frame(data)), bytes(framer.frame(data[::-1]))
        assert plain(first + second) == data + data[::-1]
        chunks = -(-size // 65536)
        assert len(second) == size + 8 * chunks
        assert len(first) == len(second) + 10

    def test_kernels_write_the_same(self, compiled: ModuleType, kernel: ModuleType) -> None:
        data = random.Random(1).randbytes(150_000)
        out, expected = np.zeros(200_000, np.uint8), np.zeros(200_000, np.uint8)
        assert kernel.frame(data, out, 9) == compiled.frame(data, expected, 9) == 9 + 150_000 + 24
        assert out.tobytes() == expected.tobytes()

    def test_no_room(self, kernel: ModuleType) -> None:
        for size, position in [(12, 0), (20, 8), (20, -1), (20, 21)]:
            with pytest.raises(ValueError, match="fit"):
                kernel.frame(b"hello", np.zeros(size, np.uint8), position)
        assert kernel.frame(b"hello", np.zeros(13, np.uint8), 0) == 13

    def test_snappy(self) -> None:
        pytest.importorskip("cramjam")
        framer = Framer(SNAPPY)
        data = b"the same again and again, " * 20_000
        framed = bytes(framer.frame(data)) + bytes(framer.frame(b"and more"))
        assert len(framed) < len(data) / 5
        assert plain(framed) == data + b"and more"

    def test_unknown_compression(self) -> None:
        with pytest.raises(UsageError, match="'zip'"):
            Framer("zip")

    def test_snappy_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cramjam", None)
        with pytest.raises(UsageError, match="cramjam") as caught:
            Framer(SNAPPY)
        assert "stored" in caught.value.remedy
        with pytest.raises(UsageError, match="cramjam"):
            plain(framing.IDENTIFIER + chunk(0, b"\x05\x10hello"))


class TestUnframe:
    def test_parts_of_any_size(self) -> None:
        framed = HELLO + HELLO
        for size in range(1, 30):
            parts: Iterator[bytes] = (framed[place : place + size] for place in range(0, len(framed), size))
            assert b"".join(bytes(part) for part in unframe(parts, "x")) == b"hellohello"

    def test_what_is_skipped(self) -> None:
        padding = b"\xfe\x03\x00\x00abc"
        assert plain(framing.IDENTIFIER + padding + b"\x99\x00\x00\x00" + chunk(1, b"hello") + padding) == b"hello"

    def test_what_the_server_writes(self) -> None:
        begin = b"\xff\x06\x00\x00S2sTwO"
        data = bytes(300_000)
        assert plain(begin + chunk(1, data)) == data
        with pytest.raises(ArchiveError, match="300004 bytes"):
            plain(framing.IDENTIFIER + chunk(1, data))

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"tar", "missing"),
            (b"meta.inf" + bytes(100), "does not begin like"),
            (chunk(1, b"hello"), "does not begin like"),
            (b"\xff\x06\x00\x00sNaPpX", "identifier"),
            (b"\xff\x05\x00\x00sNaPp", "identifier"),
            (HELLO + b"\x02\x00\x00\x00", "type 2"),
            (HELLO + b"\x01\x03\x00\x00abc", "has 3 bytes"),
            (HELLO[:-1], "1 bytes are missing"),
            (HELLO[:-1] + b"0", "damaged"),
            (framing.IDENTIFIER + chunk(0, b"\xff\xff\xff\xff\x0f\x00"), "claims 4294967295 bytes"),
            (framing.IDENTIFIER + chunk(0, b"\x81\x80\x04\x00"), "claims 65537 bytes"),
            (framing.IDENTIFIER + chunk(0, b"\x05\x40hello"), "decompressed"),
            (framing.IDENTIFIER + chunk(0, b""), "decompressed"),
            (framing.IDENTIFIER + chunk(0, b"\x05\x10hello", b"other"), "damaged"),
        ],
    )
    def test_damage(self, data: bytes, said: str) -> None:
        if data[:11] == framing.IDENTIFIER + b"\0":
            pytest.importorskip("cramjam")
        with pytest.raises(ArchiveError, match=said):
            plain(data)

    def test_compressed(self) -> None:
        pytest.importorskip("cramjam")
        assert plain(framing.IDENTIFIER + chunk(0, b"\x05\x10hello", b"hello")) == b"hello"

    def test_anything_else_is_said_to_be_damaged(self) -> None:
        """Whatever the bytes are, nothing but ArchiveError comes of them."""
        chance = random.Random(7)
        framed = bytes(Framer(STORED).frame(chance.randbytes(500)))
        for _ in range(400):
            bad = bytearray(framed)
            for _ in range(chance.randrange(1, 4)):
                bad[chance.randrange(18)] = chance.randrange(256)
            try:
                plain(bytes(bad))
            except ArchiveError as problem:
                assert problem.message.startswith("the archive")
