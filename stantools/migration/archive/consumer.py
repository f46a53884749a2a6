"""The state of a consumer as the file `o.dat` holds it (jetstream-migration.md section 9).

    22, 2
    u ack_floor.consumer   u ack_floor.stream   u delivered.consumer   u delivered.stream
    u number of pending; if there are any: s base second, then for each
        u sequence - ack_floor.stream   u consumer sequence - ack_floor.consumer   s base - second of its time
    u number of redelivered; for each: u sequence - ack_floor.stream   u count

u is a varint of seven bits a byte, s the same of a zigzag number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stantools.errors import UsageError
from stantools.migration.archive.layout import ArchiveError

_BEGIN: Final = b"\x16\x02"
_SECOND: Final = 1_000_000_000
_MAX_VARINT: Final = 10


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """How far a consumer is. Sequences come in pairs: that of the delivery, and that in the stream.

    Attributes:
        ack_floor: Everything up to here is acknowledged.
        delivered: The last one sent.
        pending: By sequence in the stream, what was sent and not acknowledged: consumer sequence, and time of the
            delivery in nanoseconds since 1970 (kept in seconds).
        redelivered: By sequence in the stream, how often it was sent again.
    """

    ack_floor: tuple[int, int]
    delivered: tuple[int, int]
    pending: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    redelivered: Mapping[int, int] = field(default_factory=dict)

    def problem(self) -> str:
        """Returns what a server would not accept about it, empty if nothing."""
        for floor, delivered in zip(self.ack_floor, self.delivered, strict=True):
            if not 0 <= floor <= delivered:
                return f"the ack floor {floor} is not within 0 and what was delivered, {delivered}"
        floor, delivered = self.ack_floor[1], self.delivered[1]
        for sequence, (number, _) in self.pending.items():
            if not floor < sequence <= delivered:
                return f"{sequence} is pending, which is not within the ack floor {floor} and {delivered}"
            if not self.ack_floor[0] < number <= self.delivered[0]:
                return f"{sequence} is pending as delivery {number} of {self.delivered[0]}"
        for sequence, count in self.redelivered.items():
            if sequence <= floor or count < 0:
                return f"{sequence} was redelivered {count} times, the ack floor is {floor}"
        return ""


def encode_consumer(state: ConsumerState) -> bytes:
    """Returns the bytes of `o.dat`.

    Raises:
        UsageError: The state contradicts itself.
    """
    problem = state.problem()
    if problem:
        raise UsageError(f"a consumer's state is not possible: {problem}", "correct its position in the plan")
    out = bytearray(_BEGIN)
    for number in (*state.ack_floor, *state.delivered, len(state.pending)):
        _put(out, number)
    floor = state.ack_floor
    if state.pending:
        base = max(time // _SECOND for _, time in state.pending.values())
        _put(out, _zigzag(base))
        for sequence, (number, time) in sorted(state.pending.items()):
            _put(out, sequence - floor[1])
            _put(out, number - floor[0])
            _put(out, _zigzag(base - time // _SECOND))
    _put(out, len(state.redelivered))
    for sequence, count in sorted(state.redelivered.items()):
        _put(out, sequence - floor[1])
        _put(out, count)
    return bytes(out)


def decode_consumer(data: bytes) -> ConsumerState:
    """Reads the bytes of `o.dat`.

    Raises:
        ArchiveError: They are not such a state.
    """
    if data[:2] != _BEGIN:
        raise ArchiveError(f"a consumer's state begins with {data[:2].hex()!r} instead of {_BEGIN.hex()!r}")
    numbers = _Numbers(data, len(_BEGIN))
    floor = (numbers.take(), numbers.take())
    delivered = (numbers.take(), numbers.take())
    pending: dict[int, tuple[int, int]] = {}
    count = numbers.take()
    base = numbers.signed() if count else 0
    for _ in range(numbers.bounded(count, 3)):
        sequence, number = floor[1] + numbers.take(), floor[0] + numbers.take()
        pending[sequence] = (number, (base - numbers.signed()) * _SECOND)
    redelivered: dict[int, int] = {}
    for _ in range(numbers.bounded(numbers.take(), 2)):
        sequence = floor[1] + numbers.take()
        redelivered[sequence] = numbers.take()
    if numbers.position != len(data):
        raise ArchiveError(f"a consumer's state ends at byte {numbers.position} of {len(data)}")
    state = ConsumerState(floor, delivered, pending, redelivered)
    problem = state.problem()
    if problem:
        raise ArchiveError(f"a consumer's state is not possible: {problem}")
    return state


class _Numbers:
    """Varints one after the other."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def take(self) -> int:
        value = shift = 0
        for byte in self._data[self.position : self.position + _MAX_VARINT]:
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if value >> 64:
                    break
                return value
        raise ArchiveError(f"a consumer's state has no number before byte {self.position} of {len(self._data)}")

    def signed(self) -> int:
        value = self.take()
        return value >> 1 ^ -(value & 1)

    def bounded(self, count: int, size: int) -> int:
        """The count, if that many entries of at least `size` bytes can follow."""
        if count > (len(self._data) - self.position) // size:
            raise ArchiveError(f"a consumer's state claims {count} entries and ends at byte {len(self._data)}")
        return count


def _put(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
