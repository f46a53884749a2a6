"""bbolt files, in which a clustered node keeps its Raft log: a B+tree of pages, read from untrusted bytes.

Facts: clustered-stores.md sections 2 and 13. Numbers are little-endian.

    page     | id u64 | flags u16 | count u16 | overflow u32 | elements | keys and values |
    meta     | magic u32 | version u32 | page size u32 | flags u32 | root u64 | sequence u64 | freelist u64 |
             | pages in use u64 | transaction u64 | FNV-1a u64 |
    branch   | where the key is u32 | its size u32 | child u64 |
    leaf     | flags u32 | where the key is u32 | its size u32 | size of the value after it u32 |
    bucket   | root u64 | sequence u64 | a leaf page, if the root is 0 |

Pages 0 and 1 are metas, written in turn; pages of the transaction before the current one are still whole. Only the
metas have a checksum. So every page is checked against the rules of the tree: a page is where its id says, lies
within the file and is reached once; keys rise, and lie between those of the branch above. Violations come as `Fault`
items in the iteration, which continues with the neighbours. The work is bounded by the size of the file.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_PAGE = struct.Struct("<QHHI")
_META = struct.Struct("<IIIIQQQQQQ")
_BRANCH = struct.Struct("<IIQ")
_LEAF = struct.Struct("<IIII")
_BUCKET = struct.Struct("<QQ")

PAGE_HEADER_SIZE = _PAGE.size
_ELEMENT_SIZE = _LEAF.size
_MAGIC = 0xED0CDAED
_VERSION = 2
_NOT_STORED = 2**64 - 1
_BRANCH_PAGE, _LEAF_PAGE = 1, 2
_MAX_KEY = 32768
_MAX_DEPTH = 24
#: Limit of the total size of a page's values, as a multiple of the page; values of a sound page do not overlap.
_OVERLAP = 4
#: page sizes tried when the first meta is damaged
_PAGE_SIZES = tuple(1 << shift for shift in range(10, 17))

_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class FaultKind(enum.StrEnum):
    META = "meta"  #: an invalid meta page; the other one is the state of one transaction before or after
    PAGE = "page"  #: a tree page that cannot be read: its range of keys is lost
    KEYS = "keys"  #: keys out of place: an older content of the page, or damage
    ELEMENT = "element"  #: a key or value that reaches out of its page


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    offset: int  #: first byte of the fault
    length: int
    detail: str  #: the finding and the expectation
    low: bytes = b""  #: first key that may be lost; empty if the loss has no lower bound
    high: bytes | None = None  #: first key after the loss; None if the loss has no upper bound


@dataclass(frozen=True, slots=True)
class MetaPage:
    page: int  #: page number, 0 or 1
    page_size: int
    root: int
    freelist: int | None  #: page of the list of free pages; None if not stored
    high_water: int
    transaction: int  #: id of the transaction that wrote it; the higher one is current


@dataclass(slots=True)
class LeafPage:
    at: int
    end: int
    count: int  #: number of elements by the header
    low: bytes = b""  #: lower bound of its keys, included
    high: bytes | None = None  #: upper bound of its keys, excluded; None if unbounded
    last: bytes = b""  #: the highest key read from it; set by the reader


class BoltItem(NamedTuple):
    key: bytes
    offset: int  #: where the value begins
    size: int
    flags: int  #: 1: the value is a bucket


def checksum(data: memoryview | bytes) -> int:
    value = _FNV_BASIS
    for byte in bytes(data):
        value = (value ^ byte) * _FNV_PRIME & _NOT_STORED
    return value


def read_meta(buffer: memoryview, offset: int) -> MetaPage | str:
    """Reads the meta page at an offset; returns the reason, with the server's words first, if it is invalid."""
    at = offset + PAGE_HEADER_SIZE
    if at + _META.size > len(buffer):
        return f"file size too small: a meta page ends at byte {at + _META.size}, the file at {len(buffer)}"
    magic, version, size, _, root, _, freelist, high, transaction, stored = _META.unpack_from(buffer, at)
    if magic != _MAGIC:
        return f"invalid database: the magic number is 0x{magic:08x}, expected 0x{_MAGIC:08x}"
    if version != _VERSION:
        return f"version mismatch: {version}, expected {_VERSION}"
    computed = checksum(buffer[at : at + _META.size - 8])
    if computed != stored:
        return f"checksum error: stored 0x{stored:016x}, computed 0x{computed:016x}"
    if size not in _PAGE_SIZES:
        return f"the page size is {size}, expected a power of two from {_PAGE_SIZES[0]} to {_PAGE_SIZES[-1]}"
    kept = None if freelist == _NOT_STORED else freelist
    return MetaPage(0 if offset == 0 else 1, size, root, kept, high, transaction)


class BoltFile:
    """A bbolt file in a buffer. A file that changes meanwhile yields faults at worst."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self.faults: list[Fault] = []  #: faults of the metas and of the file's size
        #: the current meta; None if both are damaged, and then only `loose_items` finds items
        self.meta = self._read_metas()
        #: bytes of a page; an estimate if no meta is valid
        self.page_size = self.meta.page_size if self.meta else self._estimate_page_size()
        in_file = len(buffer) // self.page_size
        #: number of pages that are in use and in the file
        self.pages = min(self.meta.high_water, in_file) if self.meta else in_file
        if self.meta and self.meta.high_water > in_file:
            end = self.meta.high_water * self.page_size
            text = f"the file ends at byte {len(buffer)}, its pages at {end}: {end - len(buffer)} bytes are cut off"
            self.faults.append(Fault(FaultKind.PAGE, len(buffer), 0, text))

    def _read_metas(self) -> MetaPage | None:
        first = read_meta(self._buffer, 0)
        # If the first is damaged, the place of the second depends on its own page size.
        sizes = (first.page_size,) if isinstance(first, MetaPage) else (4096, *_PAGE_SIZES)
        place, second = sizes[0], read_meta(self._buffer, sizes[0])
        for size in sizes:
            found = read_meta(self._buffer, size)
            if isinstance(found, MetaPage) and found.page_size == size:
                place, second = size, found
                break
        for offset, meta in ((0, first), (place, second)):
            if isinstance(meta, str):
                offset = min(offset, len(self._buffer))
                length = min(place, len(self._buffer) - offset)
                self.faults.append(Fault(FaultKind.META, offset, length, meta))
        valid = [meta for meta in (first, second) if isinstance(meta, MetaPage)]
        return max(valid, key=lambda meta: meta.transaction, default=None)

    def _estimate_page_size(self) -> int:
        """The page size at which most of the first pages have their own number; the usual one in doubt."""

        def fits(size: int) -> int:
            ends = range(size, min(len(self._buffer) - PAGE_HEADER_SIZE, 64 * size), size)
            return sum(_PAGE.unpack_from(self._buffer, at)[0] == at // size for at in ends)

        return max((4096, *_PAGE_SIZES), key=fits)

    def buckets(self) -> Iterator[BoltItem | Fault]:
        if self.meta:
            yield from self._items(self._walk(self.meta.root, bytearray(self.pages)))

    def items(self, bucket: BoltItem) -> Iterator[BoltItem | Fault]:
        """Iterates over a bucket (an item of `buckets`) in the order of its keys, with faults in their places."""
        return self._items(self.leaves(bucket))

    def leaves(self, bucket: BoltItem, reached_pages: bytearray | None = None) -> Iterator[LeafPage | Fault]:
        """Iterates over the leaves of a bucket in the order of their keys.

        The caller must read each leaf and set its `last` before it takes the next one. `reached_pages` holds one byte
        per page of the file, set to 1 for every page of the bucket.
        """
        end = bucket.offset + bucket.size
        if bucket.size < _BUCKET.size:
            text = f"a bucket has {bucket.size} bytes, expected {_BUCKET.size} at least"
            yield Fault(FaultKind.ELEMENT, bucket.offset, bucket.size, text)
            return
        root, _ = _BUCKET.unpack_from(self._buffer, bucket.offset)
        if root:
            yield from self._walk(root, bytearray(self.pages) if reached_pages is None else reached_pages)
            return
        at = bucket.offset + _BUCKET.size
        if end - at < PAGE_HEADER_SIZE or _PAGE.unpack_from(self._buffer, at)[1] != _LEAF_PAGE:
            yield Fault(FaultKind.PAGE, at, end - at, "the page inside a bucket is not a leaf")
            return
        yield LeafPage(at, end, _PAGE.unpack_from(self._buffer, at)[2])

    def _items(self, leaves: Iterator[LeafPage | Fault]) -> Iterator[BoltItem | Fault]:
        for leaf in leaves:
            if type(leaf) is Fault:
                yield leaf
            else:
                assert type(leaf) is LeafPage
                yield from self.in_leaf(leaf)

    def item(self, leaf: LeafPage, place: int) -> BoltItem:
        """Returns an element of a leaf that `kernels.scan_leaf` found sound."""
        offset = leaf.at + PAGE_HEADER_SIZE + place * _ELEMENT_SIZE
        flags, position, key_size, size = _LEAF.unpack_from(self._buffer, offset)
        begin = offset + position
        leaf.last = bytes(self._buffer[begin : begin + key_size])
        return BoltItem(leaf.last, begin + key_size, size, flags)

    def loose_items(self, reached_pages: bytearray) -> Iterator[BoltItem]:
        """Iterates over elements of leaves that the tree no longer leads to, page by page.

        A page is overwritten no earlier than in the second transaction after it was freed, so these are older
        versions of the tree's elements, and deleted ones. Only the reader of the values can tell which make sense.
        `reached_pages` marks pages to skip, as `leaves` fills it.
        """
        for page in range(2, len(self._buffer) // self.page_size):
            if page < len(reached_pages) and reached_pages[page]:
                continue
            at = page * self.page_size
            number, flags, count, overflow = _PAGE.unpack_from(self._buffer, at)
            # In a multi-page leaf, all elements are in the first page: a large value makes it large, not many small
            # ones.
            if number != page or flags != _LEAF_PAGE or count * _ELEMENT_SIZE > self.page_size - PAGE_HEADER_SIZE:
                continue
            end = min(at + (overflow + 1) * self.page_size, len(self._buffer))
            yield from (each for each in self._elements(at, end, count) if isinstance(each, BoltItem))

    def _walk(self, root: int, reached_pages: bytearray) -> Iterator[LeafPage | Fault]:
        stack: list[tuple[int, bytes, bytes | None, int]] = [(root, b"", None, 0)]
        last = b""
        while stack:
            page, low, high, depth = stack.pop()
            problem, at, end, flags, count = self._page(page, reached_pages, depth)
            if problem:
                yield Fault(FaultKind.PAGE, at, end - at, problem, low, high)
                continue
            if flags == _BRANCH_PAGE:
                children, faults = self._branch(at, end, count, low, high)
                yield from faults
                stack += [(*child, depth + 1) for child in reversed(children)]
                continue
            # The bounds of a damaged branch do not hold; keys that were already yielded are not repeated.
            leaf = LeafPage(at, end, count, max(low, last + b"\0") if last else low, high)
            yield leaf
            last = leaf.last or last

    def _page(self, page: int, reached_pages: bytearray, depth: int) -> tuple[str, int, int, int, int]:
        """Checks the header of a tree page; returns the problem, its start and end, its kind and count."""
        if not 2 <= page < self.pages:
            return f"page {page} is not in the file, which has {self.pages}", len(self._buffer), len(self._buffer), 0, 0
        at = page * self.page_size
        number, flags, count, overflow = _PAGE.unpack_from(self._buffer, at)
        end = at + (overflow + 1) * self.page_size
        problem = ""
        if number != page:
            problem = f"page {page} has the number {number}"
        elif flags not in (_BRANCH_PAGE, _LEAF_PAGE):
            problem = f"page {page} is of kind 0x{flags:x}, expected a branch or a leaf"
        elif page + overflow >= self.pages:
            problem = f"page {page} continues for {overflow} more pages, beyond the end of the file"
        elif depth > _MAX_DEPTH:
            problem = f"page {page} lies {depth} levels below the root"
        elif reached_pages.find(1, page, page + overflow + 1) >= 0:
            problem = f"the tree leads to page {page} more than once"
        elif PAGE_HEADER_SIZE + count * _ELEMENT_SIZE > end - at:
            problem = f"page {page} cannot hold {count} elements"
        if problem:
            return problem, at, at + self.page_size, 0, 0
        reached_pages[page : page + overflow + 1] = b"\x01" * (overflow + 1)
        return "", at, end, flags, count

    def _branch(
        self, at: int, end: int, count: int, low: bytes, high: bytes | None
    ) -> tuple[list[tuple[int, bytes, bytes | None]], list[Fault]]:
        keys: list[bytes] = []
        pages: list[int] = []
        place = at + PAGE_HEADER_SIZE
        fits = True
        for offset in range(place, place + count * _ELEMENT_SIZE, _ELEMENT_SIZE):
            position, size, child = _BRANCH.unpack_from(self._buffer, offset)
            begin = offset + position
            pages.append(child)
            if not 0 < size <= _MAX_KEY or begin + size > end:
                fits = False
                continue
            key = bytes(self._buffer[begin : begin + size])
            fits = fits and key >= low and (high is None or key < high) and (not keys or key > keys[-1])
            keys.append(key)
        if fits:
            return list(zip(pages, keys, (*keys[1:], high), strict=True)), []
        text = f"the keys of branch page {at // self.page_size} do not rise, or lie outside those of the page above"
        # No child is lost: their keys are checked against the bounds of the branch only.
        return [(page, low, high) for page in pages], [Fault(FaultKind.KEYS, at, end - at, text, low, high)]

    def in_leaf(self, leaf: LeafPage) -> Iterator[BoltItem | Fault]:
        """Iterates over a leaf; keys out of place are skipped and reported."""
        at, end, count, low, high = leaf.at, leaf.end, leaf.count, leaf.low, leaf.high
        found: list[BoltItem] = []
        strange: list[bytes] = []
        for each in self._elements(at, end, count):
            if type(each) is Fault:
                yield each
                continue
            assert type(each) is BoltItem
            if each.key < low or (high is not None and each.key >= high):
                strange.append(each.key)
                continue
            if found and each.key <= found[-1].key:
                # One of the two is wrong: the earlier one, if the later fits after the one before both.
                if len(found) == 1 or each.key > found[-2].key:
                    strange.append(found.pop().key)
                else:
                    strange.append(each.key)
                    continue
            found.append(each)
        if strange:
            text = f"{len(strange)} of {count} keys do not belong where they are, from {strange[0].hex()} on"
            yield Fault(FaultKind.KEYS, at, end - at, text, low, high)
        for item in found:
            leaf.last = item.key
            yield item

    def _elements(self, at: int, end: int, count: int) -> Iterator[BoltItem | Fault]:
        begin = at + PAGE_HEADER_SIZE
        table = begin + count * _ELEMENT_SIZE
        if table > end:
            yield Fault(FaultKind.PAGE, at, end - at, f"{count} elements do not fit into {end - at} bytes")
            return
        left = _OVERLAP * (end - at)
        offset = begin
        for flags, position, key_size, size in _LEAF.iter_unpack(self._buffer[begin:table]):
            key_at = offset + position
            value_at = key_at + key_size
            left -= key_size + size
            if not 0 < key_size <= _MAX_KEY or value_at + size > end or key_at < table or left < 0:
                text = f"an element of {key_size} and {size} bytes at {key_at} does not fit into its page"
                yield Fault(FaultKind.ELEMENT, offset, _ELEMENT_SIZE, text)
                left += key_size + size if value_at + size > end else 0
            else:
                yield BoltItem(bytes(self._buffer[key_at:value_at]), value_at, size, flags)
            offset += _ELEMENT_SIZE
