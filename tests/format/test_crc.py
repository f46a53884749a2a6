from __future__ import annotations

import pickle
import random
import zlib
from pathlib import Path

import pytest

from stantools.errors import UsageError
from stantools.format import crc
from stantools.format.crc import Crc
from tests.format.conftest import KERNELS

ARBITRARY = 0x12345678
CHECKS = {crc.IEEE: 0xCBF43926, crc.CASTAGNOLI: 0xE3069283, crc.KOOPMAN: 0x2D3DD0AE, ARBITRARY: 0xE5F9B040}


@pytest.mark.parametrize(("polynomial", "expected"), CHECKS.items(), ids=hex)
def test_check_values_of_the_specification(polynomial: int, expected: int) -> None:
    function = Crc(polynomial)
    assert function(b"123456789") == expected
    assert function(b"456789", function(b"123")) == expected
    assert function(memoryview(bytearray(b"0123456789"))[1:]) == expected
    assert function(b"") == 0


@pytest.mark.parametrize("polynomial", CHECKS, ids=hex)
def test_tables(polynomial: int) -> None:
    function = Crc(polynomial)
    register = 0xFFFFFFFF
    data = random.Random(1).randbytes(40)
    for byte in data:
        register = register >> 8 ^ function.tables[0, (register ^ byte) & 0xFF]
    assert register ^ 0xFFFFFFFF == function(data)
    # Table k is table 0 after k bytes of zeros.
    for k in range(1, 16):
        register = function.tables[0, 171]
        for _ in range(k):
            register = register >> 8 ^ function.tables[0, register & 0xFF]
        assert register == function.tables[k, 171]


def test_compiled() -> None:
    polynomials: list[int] = [*CHECKS, 1, 0xFFFFFFFF, 0x80000000]
    both_ways: list[bool] = [False, True]
    for polynomial in polynomials:
        for by_tables in both_ways:
            compiled = KERNELS.compiled
            function = Crc(polynomial)
            data = random.Random(3).randbytes(70_000)
            for size in [*range(900), 1023, 1024, 1025, 65_536, 69_001]:
                for start in (0, 5):
                    part = data[start : start + size]
                    assert compiled.checksum(part, function, by_tables) == function(part), (polynomial, by_tables)


def test_the_default_is_that_of_zlib() -> None:
    data = random.Random(2).randbytes(5000)
    assert Crc()(data) == zlib.crc32(data)


def test_equal_by_polynomial() -> None:
    assert Crc() == Crc(crc.IEEE) != Crc(crc.KOOPMAN)
    assert len({Crc(), Crc(crc.IEEE), Crc(crc.KOOPMAN)}) == 2
    assert Crc() != crc.IEEE
    assert repr(Crc()) == "Crc(0xEDB88320)"
    assert pickle.loads(pickle.dumps(Crc(ARBITRARY))) == Crc(ARBITRARY)


@pytest.mark.parametrize("polynomial", [0, -1, 1 << 32])
def test_a_polynomial_has_32_bits(polynomial: int) -> None:
    with pytest.raises(UsageError, match="not between 1 and 4294967295"):
        Crc(polynomial)


def samples(polynomial: int, sizes: list[int], seed: int = 0) -> list[tuple[bytes, int]]:
    source = random.Random(seed)
    function = Crc(polynomial)
    return [(payload := source.randbytes(size), function(payload)) for size in sizes]


@pytest.mark.parametrize("polynomial", CHECKS, ids=hex)
def test_detects_the_polynomials_in_use(polynomial: int) -> None:
    assert crc.detect(samples(polynomial, [30, 17, 200, 4, 60])) == polynomial


def test_one_sample_is_enough_for_a_known_polynomial() -> None:
    assert crc.detect([(b"123456789", 0xE3069283)]) == crc.CASTAGNOLI
    assert crc.detect([(b"", 0), (b"damaged", 1), (b"123456789", 0x2D3DD0AE)]) == crc.KOOPMAN


def test_detects_any_polynomial() -> None:
    for seed in range(12):
        source = random.Random(seed)
        polynomial = source.randrange(1, 1 << 32)
        good = samples(polynomial, [source.randrange(1, 120) for _ in range(9)], seed)
        damaged = [(b"damaged", 1), (b"also damaged", 2), (source.randbytes(50), 3)]
        mixed = good + damaged
        source.shuffle(mixed)
        assert crc.detect(mixed) == polynomial, seed
        assert crc.detect(damaged + good) == polynomial, seed


def test_samples_that_do_not_tell() -> None:
    assert crc.detect([]) is None
    assert crc.detect([(b"", 0), (b"", 0)]) is None
    assert crc.detect(samples(ARBITRARY, [50])) is None
    assert crc.detect([(b"the same", 77), (b"the same", 77)]) is None
    assert crc.detect([(bytes([i]) * (i + 3), i) for i in range(10)]) is None


def test_detects_on_real_records(golden: Path) -> None:
    data = (golden / "crc_castagnoli" / "datastore" / "server.dat").read_bytes()
    assert crc.detect([(data[12:], int.from_bytes(data[8:12], "little"))]) == crc.CASTAGNOLI
    # As if another polynomial had written real messages.
    unusual = Crc(0xA833982B)
    payloads = [p.read_bytes()[12:80] for p in sorted((golden / "slices_count").glob("datastore/*/msgs.*.dat"))]
    assert crc.detect([(payload, unusual(payload)) for payload in payloads]) == 0xA833982B
