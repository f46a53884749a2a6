"""Writes bbolt files and Raft logs, page by page, for tests: as the format says, and by no code that is tested."""

from __future__ import annotations

import struct
from collections.abc import Iterable

PAGE = 4096
_BRANCH, _LEAF, _META = 1, 2, 4

Pairs = list[tuple[bytes, bytes]]


def fnv(data: bytes) -> int:
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def meta(number: int, root: int, high: int, transaction: int, page_size: int = PAGE) -> bytes:
    """A meta page."""
    body = struct.pack("<IIIIQQQQQ", 0xED0CDAED, 2, page_size, 0, root, 0, 2**64 - 1, high, transaction)
    return struct.pack("<QHHI", number, _META, 0, 0) + body + struct.pack("<Q", fnv(body))


def _elements(rows: Iterable[tuple[bytes, bytes, tuple[int, ...]]]) -> bytes:
    rows = list(rows)
    table, tail = b"", b""
    for place, (key, value, numbers) in enumerate(rows):
        position = 16 * (len(rows) - place) + len(tail)
        if len(numbers) == 1:
            table += struct.pack("<IIQ", position, len(key), numbers[0])
        else:
            table += struct.pack("<IIII", numbers[0], position, len(key), len(value))
        tail += key + value
    return table + tail


def leaf(number: int, pairs: Pairs, *, buckets: bool = False, page_size: int = PAGE) -> bytes:
    """A leaf, with as many pages as it needs."""
    body = _elements((key, value, (int(buckets), 0)) for key, value in pairs)
    overflow = (16 + len(body) - 1) // page_size
    return struct.pack("<QHHI", number, _LEAF, len(pairs), overflow) + body


def build(
    buckets: dict[bytes, Pairs], *, per_leaf: int = 8, page_size: int = PAGE, free: Iterable[bytes] = ()
) -> bytes:
    """A whole file.

    Args:
        buckets: What is in each, in the order of the keys.
        per_leaf: Keys a leaf.
        page_size: Bytes of a page.
        free: Contents of pages that the tree does not lead to; None of them has its number yet.
    """
    pages: dict[int, bytes] = {}
    following = 2

    def add(page: bytes) -> int:
        nonlocal following
        number, following = following, following + (len(page) - 1) // page_size + 1
        pages[number] = struct.pack("<Q", number) + page[8:]
        return number

    roots: Pairs = []
    for name, pairs in sorted(buckets.items()):
        if len(pairs) <= 2 and sum(len(value) for _, value in pairs) < 200:
            roots.append((name, struct.pack("<QQ", 0, 0) + leaf(0, pairs, page_size=page_size)))
            continue
        level = [
            (pairs[at][0], add(leaf(0, pairs[at : at + per_leaf], page_size=page_size)))
            for at in range(0, len(pairs), per_leaf)
        ]
        while len(level) > 1:
            wide = max(per_leaf, 2)
            level = [
                (part[0][0], add(branch(0, part)))
                for part in (level[at : at + wide] for at in range(0, len(level), wide))
            ]
        roots.append((name, struct.pack("<QQ", level[0][1], 0)))
    for page in free:
        add(page)
    root = add(leaf(0, roots, buckets=True, page_size=page_size))
    pages[0] = meta(0, root, following, 6, page_size)
    pages[1] = meta(1, root, following, 5, page_size)
    content = bytearray(following * page_size)
    for number, page in pages.items():
        content[number * page_size : number * page_size + len(page)] = page
    return bytes(content)


def branch(number: int, part: list[tuple[bytes, int]]) -> bytes:
    """A branch page: the first key of each child, and its page."""
    return struct.pack("<QHHI", number, _BRANCH, len(part), 0) + _elements((key, b"", (child,)) for key, child in part)


def entry(index: int, data: bytes | None, *, term: int = 1, kind: int = 0, timed: bool = True) -> bytes:
    """A log entry as servers write it: the newer form with a time, or the older one."""

    def text(value: bytes) -> bytes:
        if len(value) < 32:
            return bytes([0xA0 | len(value)]) + value
        head = struct.pack(">BH", 0xDA, len(value)) if len(value) < 65536 else struct.pack(">BI", 0xDB, len(value))
        return head + value

    def number(value: int) -> bytes:
        if value < 128:
            return bytes([value])
        code, size = next((c, n) for c, n in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)) if value < 256**n)
        return bytes([code]) + value.to_bytes(size, "big")

    fields = {
        b"Data": b"\xc0" if data is None else text(data),
        b"Extensions": b"\xc0",
        b"Index": number(index),
        b"Term": number(term),
        b"Type": number(kind),
    }
    if timed:
        fields = {b"AppendedAt": text(struct.pack(">Q", 5 << 34 | 1_700_000_000)), **fields}
    else:
        del fields[b"Extensions"]
    return bytes([0x80 | len(fields)]) + b"".join(text(name) + value for name, value in fields.items())


def raft_log(entries: Pairs, *, term: int = 1, channels: dict[bytes, int] | None = None, **more: object) -> bytes:
    """A Raft log with these entries, keys included."""
    stable = [(b"CurrentTerm", struct.pack(">Q", term)), (b"LastVoteCand", b"trio.a.trio")]
    ids = [(name, struct.pack(">Q", number)) for name, number in sorted((channels or {}).items())]
    return build({b"logs": entries, b"conf": stable, b"channels": ids}, **more)  # type: ignore[arg-type]


def key(index: int) -> bytes:
    """The key of an entry."""
    return struct.pack(">Q", index)
