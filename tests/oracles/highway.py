"""HighwayHash-64 with numpy, for many texts side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKET_SIZE: Final = 32

#: So many texts are hashed side by side: with fewer the calls count, with more the processor's cache is too small.
SIDE_BY_SIDE: Final = 2048

_BEGIN: Final = np.array(
    [
        [0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3],
        [0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377],
    ],
    np.uint64,
)
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
#: Where the 32 bytes of the shuffled lanes come from: the same within each pair of lanes.
_PAIR: Final = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)
_ZIP: Final = np.array([*_PAIR, *(16 + place for place in _PAIR)], np.intp)


def hash_padded(
    packets: NDArray[np.uint64], start: NDArray[np.int64], size: NDArray[np.int64], key: bytes
) -> NDArray[np.uint64]:
    """Hashes many texts.

    Args:
        packets: Shape (n, 4), numbers as "<u8": the texts, each one from the beginning of a row on and filled up with
            zeros to a whole number of rows.
        start: The row where each text begins.
        size: The size of each text in bytes.
        key: 32 bytes.

    Returns:
        The hash of each text.
    """
    result = np.zeros(len(size), np.uint64)
    # The longest first: then those that still have a packet are in front.
    order = np.argsort(-size, kind="stable")
    for begin in range(0, len(order), SIDE_BY_SIDE):
        some = order[begin : begin + SIDE_BY_SIDE]
        result[some] = _hash_group(packets, start[some], size[some], key)
    return result


def _hash_group(
    packets: NDArray[np.uint64], start: NDArray[np.int64], size: NDArray[np.int64], key: bytes
) -> NDArray[np.uint64]:
    """The same for as many as fit side by side, the longest first."""
    lanes = np.frombuffer(key, "<u8")
    state = np.empty((4, len(size), 4), "<u8")  # v0, v1, mul0, mul1
    state[2:] = _BEGIN[:, None, :]
    state[0] = state[2] ^ lanes
    state[1] = state[3] ^ (lanes >> _HALF | lanes << _HALF)
    full = size // PACKET_SIZE
    falling = -full
    for step in range(int(full[0])):
        count = int(np.searchsorted(falling, -step))
        _update(state[:, :count], packets[start[:count] + step])
    rest = size % PACKET_SIZE
    partial = np.flatnonzero(rest)
    if len(partial):
        part = state[:, partial]
        _finish_text(part, packets[start[partial] + full[partial]], rest[partial])
        state[:, partial] = part
    for _ in range(4):
        turned = state[0][:, [2, 3, 0, 1]]
        _update(state, turned >> _HALF | turned << _HALF)
    total: NDArray[np.uint64] = state[:, :, 0].sum(axis=0, dtype=np.uint64)
    return total


def _update(state: NDArray[np.uint64], packet: NDArray[np.uint64]) -> None:
    """Takes in a packet for each text; uses up `packet`."""
    v0, v1, mul0, mul1 = state
    first, second = np.empty(packet.shape, "<u8"), packet
    packet += mul0
    v1 += packet
    np.bitwise_and(v1, _LOW, out=first)
    np.right_shift(v0, _HALF, out=second)
    first *= second
    mul0 ^= first
    v0 += mul1
    np.bitwise_and(v0, _LOW, out=first)
    np.right_shift(v1, _HALF, out=second)
    first *= second
    mul1 ^= first
    # With a mode numpy writes straight into the output.
    np.take(v1.view(np.uint8), _ZIP, axis=1, out=first.view(np.uint8), mode="clip")
    v0 += first
    np.take(v0.view(np.uint8), _ZIP, axis=1, out=first.view(np.uint8), mode="clip")
    v1 += first


def _finish_text(state: NDArray[np.uint64], packet: NDArray[np.uint64], rest: NDArray[np.int64]) -> None:
    """Takes in the last 1 to 31 bytes, which `packet` has in front, filled up with zeros."""
    left = rest.astype("<u8")[:, None]
    back = _HALF - left
    v0, v1 = state[0], state[1]
    v0 += (left << _HALF) + left
    low, high = v1 & _LOW, v1 >> _HALF
    v1[:] = (low << left | low >> back) & _LOW | ((high << left | high >> back) & _LOW) << _HALF
    data = packet.view(np.uint8)
    last = np.where(np.arange(PACKET_SIZE) < (rest & ~3)[:, None], data, np.uint8(0))
    long = np.flatnonzero(rest >= 16)
    for byte in range(4):
        last[long, 28 + byte] = data[long, rest[long] - 4 + byte]
    odd = rest & 3
    short = np.flatnonzero((rest < 16) & (odd > 0))
    begin, count = (rest - odd)[short], odd[short]
    last[short, 16] = data[short, begin]
    last[short, 17] = data[short, begin + (count >> 1)]
    last[short, 18] = data[short, begin + count - 1]
    _update(state, last.view("<u8"))
