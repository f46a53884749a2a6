"""CRC-32 with any polynomial, as the server's `file_crc_poly` option allows (filestore.md section 2.4).

The polynomial is a 32-bit integer in reflected form (least significant bit first). The register starts with
all ones, input and output are reflected, the result is inverted. So the default polynomial yields zlib's
CRC-32.

The store does not record the polynomial; `detect` finds it from a few records.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

from stantools.errors import UsageError

try:
    from isal.isal_zlib import crc32 as _ieee
except ImportError:
    # isal has wheels for x86-64 and arm64 only; zlib computes the same numbers, more slowly.
    _ieee = zlib.crc32

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

IEEE: Final = 0xEDB88320
CASTAGNOLI: Final = 0x82F63B78
KOOPMAN: Final = 0xEB31D82E

#: common polynomials by their name on the command line
KNOWN: Final[dict[str, int]] = {"ieee": IEEE, "castagnoli": CASTAGNOLI, "koopman": KOOPMAN}

_ONES: Final = 0xFFFFFFFF
_REVERSED_BITS: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))

#: Maximum number and size of the samples of `detect`: more adds time, not certainty.
_MAX_SAMPLES: Final = 24
_MAX_SAMPLE_SIZE: Final = 4096
#: The greatest common divisor of few samples may be the polynomial times a small factor, which is searched for.
_MAX_EXTRA_DEGREE: Final = 10


class Crc:
    """A CRC-32 as a callable, and whether those of a store are checked.

    `polynomial` is in reflected form, 1 to 0xFFFFFFFF; others raise UsageError. With `check=False`, readers accept
    records with a wrong CRC, as the server does with `-file_crc=false`.
    """

    def __init__(self, polynomial: int = IEEE, check: bool = True) -> None:
        if not 1 <= polynomial <= _ONES:
            raise UsageError(
                f"the CRC polynomial {polynomial} is not between 1 and {_ONES}",
                f"give it as the server option does: the reflected form, for example {IEEE} (IEEE)",
            )
        self.polynomial: Final = polynomial
        self.check: Final = check
        #: the same as calling the object, a little faster
        self.function: Callable[..., int] = _function(polynomial)

    def __call__(self, data: ReadableBuffer, value: int = 0) -> int:
        """Returns the CRC of `data`; `value` is the CRC of the bytes before it."""
        return self.function(data, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Crc) and (other.polynomial, other.check) == (self.polynomial, self.check)

    def __hash__(self) -> int:
        return hash((self.polynomial, self.check))

    def __repr__(self) -> str:
        return f"Crc(0x{self.polynomial:08X}{'' if self.check else ', check=False'})"

    def __reduce__(self) -> tuple[type[Crc], tuple[int, bool]]:
        return Crc, (self.polynomial, self.check)

    @property
    def checking(self) -> Crc:
        """The same CRC, always checked: for uses where it proves that bytes are a record."""
        return self if self.check else Crc(self.polynomial)

    @property
    def unchecked(self) -> Crc:
        """The same CRC, not checked: for records that were found good before."""
        return Crc(self.polynomial, check=False) if self.check else self

    @cached_property
    def tables(self) -> memoryview:
        """Tables for 16 bytes at a time: 32-bit numbers, shape (16, 256).

        `tables[k, b]` is the contribution of byte `b` to the register when `k` more bytes follow it.
        """
        return _tables(self.polynomial)

    @cached_property
    def folding(self) -> array[int]:
        """Constants for carry-less multiplication, 14 numbers of 64 bits.

        Pairs that move a 16-byte register 128, 256, 384 and 512 bits ahead: the factors for its first and
        second eight bytes. Then the factors that reduce 128 bits to 96 and to 64, and for the Barrett
        reduction to 32 bits floor(x^64 / P) and P, both reflected in 33 bits. A product of two reflected
        factors comes out shifted by one bit; the powers here are one lower to make up for that. Last a pair that
        moves a register 2048 bits ahead.
        """
        return _folding(self.polynomial)


# Computing these takes a millisecond, as long as all other work on a small file.
@lru_cache(maxsize=16)
def _tables(polynomial: int) -> memoryview:
    alone = []
    for register in range(256):
        for _ in range(8):
            register = register >> 1 ^ (polynomial if register & 1 else 0)
        alone.append(register)
    tables, before = array("I", alone), alone
    for _ in range(15):
        before = [register >> 8 ^ alone[register & 0xFF] for register in before]
        tables.extend(before)
    return memoryview(tables).cast("B").cast("I", (16, 256))


@lru_cache(maxsize=16)
def _folding(polynomial: int) -> array[int]:
    numbers = [number for distance in (128, 256, 384, 512) for number in _factors(polynomial, distance)]
    numbers += [_power(polynomial, 95) << 32, _power(polynomial, 63) << 32]
    normal = 1 << 32 | _reflect(polynomial, 32)
    numbers += [_reflect(_divide(1 << 64, normal)[0], 33), _reflect(normal, 33), *_factors(polynomial, 2048)]
    return array("Q", numbers)


def _factors(polynomial: int, distance: int) -> tuple[int, int]:
    """The factors that move a register of 128 bits ahead by a number of bits."""
    return _power(polynomial, distance + 63) << 32, _power(polynomial, distance - 1) << 32


def _power(polynomial: int, exponent: int) -> int:
    """x^exponent modulo the polynomial, reflected in 32 bits."""
    value = 1 << 31
    for _ in range(exponent):
        value = (value >> 1) ^ (polynomial if value & 1 else 0)
    return value


@lru_cache(maxsize=16)
def _function(polynomial: int) -> Callable[..., int]:
    if polynomial == IEEE:
        return _ieee
    import crcmod

    made: Callable[..., int] = crcmod.mkCrcFun(1 << 32 | _reflect(polynomial, 32), 0, True, _ONES)
    return made


def detect(samples: Iterable[tuple[ReadableBuffer, int]]) -> int | None:
    """Finds the polynomial of CRCs, in reflected form; None if the samples do not determine it.

    The known polynomials are tried first; one match decides, since a CRC matches by chance once in four billion
    times. Any other polynomial divides, for every sample, the message (with the register's start value and the CRC
    added), so it is the greatest common divisor of two or more of them over GF(2).

    Samples are payloads with their stored CRCs. Damaged samples are outvoted; empty payloads carry no information.
    """
    usable = [(bytes(payload), crc) for payload, crc in samples]
    usable = [(payload, crc) for payload, crc in usable if payload]
    if not usable:
        return None
    votes: dict[int, int] = {}
    for polynomial in KNOWN.values():
        known = Crc(polynomial)
        votes[polynomial] = sum(known(payload) == stored for payload, stored in usable)
    best = max(votes, key=lambda polynomial: votes[polynomial])
    if votes[best]:
        return best
    short = sorted((s for s in usable if len(s[0]) <= _MAX_SAMPLE_SIZE), key=lambda s: len(s[0]))
    multiples = [_multiple(payload, crc) for payload, crc in dict(short[:_MAX_SAMPLES]).items()]
    return _common_divisor(multiples)


def _multiple(payload: bytes, crc: int) -> int:
    message = int.from_bytes(payload.translate(_REVERSED_BITS), "big")
    return (message << 32) ^ (_ONES << (8 * len(payload))) ^ _reflect(crc, 32) ^ _ONES


def _common_divisor(multiples: list[int]) -> int | None:
    """The divisor of degree 32 that most of the numbers share; at least two must share it."""
    best: tuple[int, int] | None = None
    for start, base in enumerate(multiples[:4]):
        for partner in multiples[start + 1 :]:
            common, agreeing = _greatest_common_divisor(base, partner), 2
            if common.bit_length() < 33:
                continue
            for other in multiples:
                narrowed = _greatest_common_divisor(common, other)
                if narrowed.bit_length() >= 33:
                    common, agreeing = narrowed, agreeing + 1
            polynomial = _degree_32(common)
            if polynomial is not None and (best is None or agreeing > best[0]):
                best = (agreeing, polynomial)
        if best is not None:
            return best[1]
    return None


def _degree_32(common: int) -> int | None:
    """The only divisor of degree 32, reflected; None if there are several or the search would be long."""
    extra = common.bit_length() - 33
    if extra > _MAX_EXTRA_DEGREE:
        return None
    found = {
        quotient
        for quotient, rest in (_divide(common, factor) for factor in range(1 << extra, 2 << extra))
        if not rest and _reflect(quotient & _ONES, 32)
    }
    return _reflect(found.pop() & _ONES, 32) if len(found) == 1 else None


def _reflect(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


def _divide(dividend: int, divisor: int) -> tuple[int, int]:
    quotient = 0
    width = divisor.bit_length()
    while (shift := dividend.bit_length() - width) >= 0:
        quotient |= 1 << shift
        dividend ^= divisor << shift
    return quotient, dividend


def _greatest_common_divisor(a: int, b: int) -> int:
    while b:
        a, b = b, _remainder(a, b)
    return a


def _remainder(dividend: int, divisor: int) -> int:
    width = divisor.bit_length()
    while (shift := dividend.bit_length() - width) >= 0:
        dividend ^= divisor << shift
    return dividend
