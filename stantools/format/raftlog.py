"""The Raft log of a clustered node: entries, members of the cluster, terms and votes, ids of channels.

Facts: clustered-stores.md sections 2.4, 3, 4 and 9. The buckets of the file (`bbolt`), numbers in keys and values
big-endian:

    logs     | index u64            | entry: a MessagePack map |
    conf     | CurrentTerm, LastVoteTerm: u64; LastVoteCand: text |
    channels | name of the channel  | id u64 |

This module decodes the few MessagePack forms that servers of any release write, and their newer equivalents: a
library would build every value and copy every payload, while an entry is a handful of numbers and a view of its
data. Sizes are checked against the bytes left; nesting and the number of elements are bounded.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from stantools.errors import StantoolsError
from stantools.format import gogo, kernels
from stantools.format.bbolt import BoltFile, BoltItem, Fault, FaultKind, LeafPage
from stantools.format.encryption import DataCipher, DecryptError
from stantools.format.proto import store_pb2 as pb

_U64 = struct.Struct(">Q")
_MAX_DEPTH = 8
_MAX_ELEMENTS = 10_000
#: The beginning of an entry as servers since 0.22 write it: six fields, the first the time, of 8 bytes, then the data.
_HEAD = re.compile(rb"\x86\xaaAppendedAt\xa8(.{8})\xa4Data(?:([\xa0-\xbf])|(\xda..|\xdb.{4}))", re.DOTALL)
#: A number after the data (there are three): one byte, or a type byte and 1, 2, 4 or 8 bytes.
_NUMBER = rb"([\0-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8})"
_TAIL = re.compile(
    rb"\xaaExtensions\xc0\xa5Index" + _NUMBER + rb"\xa4Term" + _NUMBER + rb"\xa4Type" + _NUMBER, re.DOTALL
)
#: operations of the server, by their number
OPERATIONS = {number: name.lower() for name, number in pb.RaftOperation.Type.items()}
#: maximum number of faults kept outside the entries
_MAX_FAULTS = 1000
_NS = 1_000_000_000


class EntryType(enum.IntEnum):
    COMMAND = 0
    NOOP = 1
    ADD_PEER = 2
    REMOVE_PEER = 3
    BARRIER = 4  #: the second of every leader
    CONFIGURATION = 5  #: members of the cluster


class EntryError(StantoolsError):
    pass


@dataclass(slots=True)
class RaftEntry:
    index: int  #: index from 1
    term: int  #: term of the leader that proposed it
    type: int  #: an `EntryType`, or an unknown number
    #: The leader's clock at the proposal, nanoseconds since 1970; None if not recorded.
    appended_ns: int | None
    data: memoryview  #: the content, encrypted if the log is; a view of the file
    offset: int  #: where the value begins in the file
    size: int  #: bytes of the value

    @property
    def type_name(self) -> str:
        return EntryType(self.type).name.lower() if self.type in EntryType._value2member_map_ else f"type {self.type}"


class LoggedPublishes(NamedTuple):
    """Successive entries of one term, with successive messages of one channel."""

    first: int
    last: int
    term: int
    channel: bytes
    channel_id: int  #: id of the channel, 0 if there is none
    first_sequence: int  #: sequence of the first message
    last_sequence: int  #: sequence of the last one
    size: int  #: bytes of the entries' values
    row: int  #: place of the first entry in its leaf
    leaf: int  #: where that leaf begins in the file

    def part(self, count: int, last_sequence: int) -> LoggedPublishes:
        """Returns the first `count` entries, which end with a known sequence; `size` stays."""
        return self._replace(last=self.first + count - 1, last_sequence=last_sequence)

    def behind(self, part: LoggedPublishes) -> LoggedPublishes:
        """Returns the entries after `part`; `size` stays."""
        count = part.last + 1 - self.first
        return self._replace(first=part.last + 1, first_sequence=part.last_sequence + 1, row=self.row + count)


class RaftFlawKind(enum.StrEnum):
    GAP = "gap"  #: indexes without an entry
    ENTRY = "entry"  #: a value that is not an entry
    INDEX = "index"  #: an entry whose index differs from its key
    TERM = "term"  #: a term lower than that of an entry before


@dataclass(frozen=True, slots=True)
class RaftFlaw:
    kind: RaftFlawKind
    first: int  #: the first affected index
    last: int  #: the last affected index
    detail: str  #: the finding and the expectation
    offset: int | None = None  #: offset in the file; None if it has no place there
    length: int | None = None  #: affected bytes


# MessagePack.


def unpack(data: memoryview | bytes) -> Any:
    """Decodes one MessagePack value that fills the data; byte strings and text become views of it."""
    view = memoryview(data)
    value, end = _value(view, 0, 0)
    if end != len(view):
        raise EntryError(f"{len(view) - end} bytes follow the value")
    return value


def _value(data: memoryview, at: int, depth: int) -> tuple[Any, int]:
    code = _number(data, at, 1)
    at += 1
    if code < 0x80:
        return code, at
    if code < 0x90:
        return _map(data, at, code & 0x0F, depth)
    if code < 0xA0:
        return _list(data, at, code & 0x0F, depth)
    if code < 0xC0:
        return _bytes(data, at, code & 0x1F)
    if code >= 0xE0:
        return code - 256, at
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _SIZED_FORMS:
        width, read = _SIZED_FORMS[code]
        found: tuple[Any, int] = read(data, at + width, _number(data, at, width), depth)
        return found
    if 0xCA <= code <= 0xD3:
        width = _WIDTHS[code]
        number = _number(data, at, width)
        if code >= 0xD0 and number >> (8 * width - 1):
            number -= 1 << 8 * width
        return number, at + width
    if 0xD4 <= code <= 0xD8:
        return _extension(data, at, 1 << (code - 0xD4), depth)
    raise EntryError(f"only encoded map or array can be decoded: byte 0x{code:02x} at {at - 1}")


def _number(data: memoryview, at: int, width: int) -> int:
    if at + width > len(data):
        raise EntryError(f"unexpected EOF at {at}")
    return int.from_bytes(data[at : at + width], "big")


def _bytes(data: memoryview, at: int, size: int, _depth: int = 0) -> tuple[memoryview, int]:
    if size > len(data) - at:
        raise EntryError(f"unexpected EOF: {size} bytes at {at}, only {len(data) - at} are there")
    return data[at : at + size], at + size


def _extension(data: memoryview, at: int, size: int, _depth: int = 0) -> tuple[memoryview, int]:
    return _bytes(data, at + 1, size)  # after its type, of which only timestamps have been seen


def _list(data: memoryview, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    _bound(size, depth)
    found = []
    for _ in range(size):
        value, at = _value(data, at, depth + 1)
        found.append(value)
    return found, at


def _map(data: memoryview, at: int, size: int, depth: int) -> tuple[dict[Any, Any], int]:
    _bound(size, depth)
    found: dict[Any, Any] = {}
    for _ in range(size):
        key, at = _value(data, at, depth + 1)
        value, at = _value(data, at, depth + 1)
        if isinstance(key, memoryview):
            found[key.tobytes().decode("utf-8", "surrogateescape")] = value
    return found, at


def _bound(size: int, depth: int) -> None:
    if size > _MAX_ELEMENTS or depth > _MAX_DEPTH:
        raise EntryError(f"{size} elements at depth {depth}, expected fewer")


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_WIDTHS = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
#: forms with a size: the bytes of the size, and the reader of the content
_SIZED_FORMS: dict[int, tuple[int, Any]] = {
    **{0xC4 + n: (1 << n, _bytes) for n in range(3)},
    **{0xC7 + n: (1 << n, _extension) for n in range(3)},
    **{0xD9 + n: (1 << n, _bytes) for n in range(3)},
    0xDC: (2, _list),
    0xDD: (4, _list),
    0xDE: (2, _map),
    0xDF: (4, _map),
}


# Entries.


def decode_entry(value: memoryview | bytes, offset: int = 0) -> RaftEntry:
    """Decodes the value of a log entry of any release, which begins at `offset` in the file; EntryError if invalid."""
    view = memoryview(value)
    usual = usual_entry(view, offset)
    if usual is not None:
        return usual
    fields = unpack(view)
    if not isinstance(fields, dict):
        raise EntryError("only encoded map or array can be decoded into a struct")
    index, term, kind = (fields.get(name, 0) for name in ("Index", "Term", "Type"))
    for name, number in (("Index", index), ("Term", term), ("Type", kind)):
        if type(number) is not int or number < 0:
            raise EntryError(f"{name} is not a number")
    data = fields.get("Data")
    if data is not None and not isinstance(data, memoryview):
        raise EntryError("Data is not a string of bytes")
    when = fields.get("AppendedAt")
    appended = _timestamp(when) if isinstance(when, memoryview) else None
    return RaftEntry(index, term, kind, appended, view[:0] if data is None else data, offset, len(view))


def usual_entry(view: memoryview, offset: int) -> RaftEntry | None:
    """Decodes an entry in exactly the form of servers since 0.22, several times faster; None for other forms."""
    head = _HEAD.match(view)
    if head is None:
        return None
    when, code, size = head.groups()
    length = code[0] & 0x1F if code else int.from_bytes(size[1:], "big")
    begin = head.end()
    tail = _TAIL.fullmatch(view, begin + length)
    if tail is None:
        return None
    index, term, kind = tail.groups()
    return RaftEntry(
        index[0] if len(index) == 1 else int.from_bytes(index[1:], "big"),
        term[0] if len(term) == 1 else int.from_bytes(term[1:], "big"),
        kind[0] if len(kind) == 1 else int.from_bytes(kind[1:], "big"),
        _timestamp(when),
        view[begin : begin + length],
        offset,
        len(view),
    )


def _timestamp(value: memoryview | bytes) -> int | None:
    if len(value) == 8:
        packed = _U64.unpack(value)[0]
        seconds, nanoseconds = packed & (1 << 34) - 1, packed >> 34
    elif len(value) == 4:
        seconds, nanoseconds = int.from_bytes(value, "big"), 0
    elif len(value) == 12:
        nanoseconds, seconds = struct.unpack(">Iq", value)
    else:
        return None
    return seconds * _NS + nanoseconds if nanoseconds < _NS else None


class RaftServer(NamedTuple):
    """A member of the cluster: its node id, its address in the log, and whether it votes."""

    id: str
    address: str
    voter: bool


def decode_configuration(data: memoryview | bytes) -> tuple[RaftServer, ...]:
    """Decodes the data of a configuration entry; EntryError if invalid."""
    fields = unpack(data)
    servers = fields.get("Servers") if isinstance(fields, dict) else None
    if not isinstance(servers, list):
        raise EntryError("a configuration without servers")
    found = []
    for each in servers:
        if not isinstance(each, dict):
            raise EntryError("a configuration with a server that is not a map")
        name, address = (_text(each.get(key)) for key in ("ID", "Address"))
        found.append(RaftServer(name, address, each.get("Suffrage", 0) == 0))
    return tuple(found)


def _text(value: Any) -> str:
    return value.tobytes().decode("utf-8", "surrogateescape") if isinstance(value, memoryview) else ""


def decode_operation(data: memoryview | bytes, cipher: DataCipher | None = None) -> pb.RaftOperation:
    """Decodes the data of a command, decrypted with the cipher of `encryption.raft_cipher` if it is encrypted."""
    try:
        plain = cipher.decrypt(data) if cipher else bytes(data)
        operation = gogo.decode(pb.RaftOperation, plain)
    except DecryptError as error:
        raise EntryError(error.message, error.remedy) from error
    except gogo.DecodeError as error:
        hint = "give the encryption key" if is_encrypted(data) and cipher is None else ""
        raise EntryError(f"no operation: {error.message}", hint) from error
    if operation.op_type not in OPERATIONS:
        raise EntryError(f"unknown op type {operation.op_type}")
    return operation


def is_encrypted(data: memoryview | bytes) -> bool:
    """Returns whether the data of a command is encrypted: a plain operation begins with another byte."""
    return len(data) > 0 and data[0] in (1, 2)


# The log as a whole.


@dataclass
class StableStore:
    term: int = 0  #: the newest term known to the node
    vote_term: int = 0  #: the term of its last vote
    vote: str = ""  #: the address of its last vote
    #: ids of channels by name; a channel that was deleted and created again has a higher one
    channels: dict[bytes, int] = field(default_factory=dict)


class RaftLog:
    """A node's Raft log (`raft.log`) in a buffer. Damage comes as faults and flaws; nothing raises."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self.bolt = BoltFile(buffer)
        #: faults of metas and of pages outside the entries
        self.faults: list[Fault] = list(self.bolt.faults)
        self.stable = StableStore()
        self._logs: BoltItem | None = None
        self._reached = bytearray(self.bolt.pages)
        for item in self.bolt.buckets():
            if isinstance(item, Fault):
                self.faults.append(item)
            elif item.key == b"logs":
                self._logs = item
            elif item.key in (b"conf", b"channels"):
                self._read_stable(item)
        if self.bolt.meta and self._logs is None:
            self.faults.append(Fault(FaultKind.PAGE, 0, 0, "the file has no bucket of the name logs"))
        del self.faults[_MAX_FAULTS:]

    def _read_stable(self, bucket: BoltItem) -> None:
        for item in self.bolt.items(bucket):
            if isinstance(item, Fault):
                self.faults.append(item)
                continue
            value = bytes(self._buffer[item.offset : item.offset + item.size])
            if bucket.key == b"conf" and item.key == b"LastVoteCand":
                self.stable.vote = value.decode("utf-8", "surrogateescape")
            elif len(value) != _U64.size:
                text = f"{item.key.decode('utf-8', 'backslashreplace')} has {len(value)} bytes, expected {_U64.size}"
                self.faults.append(Fault(FaultKind.ELEMENT, item.offset, item.size, text))
            elif bucket.key == b"channels":
                self.stable.channels[item.key] = _U64.unpack(value)[0]
            elif item.key == b"CurrentTerm":
                self.stable.term = _U64.unpack(value)[0]
            elif item.key == b"LastVoteTerm":
                self.stable.vote_term = _U64.unpack(value)[0]

    def entries(self) -> Iterator[RaftEntry | Fault | RaftFlaw]:
        """Iterates over the log in order, with faults and flaws in their places."""
        return cast(Iterator[RaftEntry | Fault | RaftFlaw], self._in_order(lambda _leaf, _term: None))

    def runs(self, bound: int) -> Iterator[LoggedPublishes | RaftEntry | Fault | RaftFlaw]:
        """Iterates as `entries`, with successive entries of one channel's messages as one `LoggedPublishes`.

        No `LoggedPublishes` extends beyond the index `bound`.
        """

        def scan(leaf: LeafPage, term: int) -> list[Any] | None:
            return kernels.scan_leaf(self._buffer, leaf.at, leaf.end, leaf.count, leaf.low, leaf.high, term, bound)

        return self._in_order(scan)

    def _in_order(
        self, scan: Callable[[LeafPage, int], list[Any] | None]
    ) -> Iterator[LoggedPublishes | RaftEntry | Fault | RaftFlaw]:
        if self._logs is None:
            return
        self._reached = bytearray(self.bolt.pages)
        expected = term = 0
        for leaf in self.bolt.leaves(self._logs, self._reached):
            if isinstance(leaf, Fault):
                yield leaf
                continue
            parts = scan(leaf, term)
            for part in self.bolt.in_leaf(leaf) if parts is None else parts:
                found: LoggedPublishes | RaftEntry | RaftFlaw
                if isinstance(part, Fault):
                    yield part
                    continue
                if type(part) is tuple:
                    found = LoggedPublishes._make((*part, leaf.at))
                    key, last, leaf.last = found.first, found.last, _U64.pack(found.last)
                    term = found.term
                else:
                    item = self.bolt.item(leaf, part) if type(part) is int else part
                    found = self._entry(item)
                    if isinstance(found, RaftFlaw) and found.kind is RaftFlawKind.ENTRY and len(item.key) != _U64.size:
                        yield found
                        continue
                    key = last = found.first if isinstance(found, RaftFlaw) else found.index
                if expected and key > expected:
                    yield RaftFlaw(
                        RaftFlawKind.GAP, expected, key - 1, f"entries {expected} to {key - 1} are not in the log"
                    )
                expected = last + 1
                if isinstance(found, RaftEntry):
                    if found.term < term:
                        text = f"entry {key} has term {found.term}, after entries of term {term}"
                        yield RaftFlaw(RaftFlawKind.TERM, key, key, text, found.offset, found.size)
                    term = max(term, found.term)
                yield found

    def _entry(self, item: BoltItem) -> RaftEntry | RaftFlaw:
        place = item.offset, item.size
        if len(item.key) != _U64.size:
            text = f"a key of {len(item.key)} bytes among the entries, expected {_U64.size}"
            return RaftFlaw(RaftFlawKind.ENTRY, 0, 0, text, *place)
        key = _U64.unpack(item.key)[0]
        try:
            entry = decode_entry(self._buffer[item.offset : item.offset + item.size], item.offset)
        except EntryError as error:
            return RaftFlaw(RaftFlawKind.ENTRY, key, key, f"entry {key} cannot be decoded: {error.message}", *place)
        if entry.index != key:
            return RaftFlaw(RaftFlawKind.INDEX, key, key, f"entry {key} has the index {entry.index}", *place)
        return entry

    def expand(self, run: LoggedPublishes) -> Iterator[RaftEntry]:
        leaf = LeafPage(run.leaf, 0, 0)
        for row in range(run.row, run.row + run.last - run.first + 1):
            found = self._entry(self.bolt.item(leaf, row))
            if isinstance(found, RaftEntry):  # else the file has changed since
                yield found

    def same(self, run: LoggedPublishes, other: RaftLog, theirs: LoggedPublishes, count: int) -> tuple[int, int]:
        """Compares the first entries of two runs byte by byte.

        Returns the number of equal leading entries, and the sequence of the last message in them.
        """
        if other is self and count == run.last - run.first + 1:
            return count, run.last_sequence
        return kernels.same_entries(self._buffer, run.leaf, run.row, other._buffer, theirs.leaf, theirs.row, count)

    def free_entries(self) -> Iterator[RaftEntry]:
        """Iterates over entries in pages that the tree does not lead to: deleted ones, and older copies of others.

        `entries` must be exhausted first. An index may come several times, with different terms.
        """
        for item in self.bolt.loose_items(self._reached):
            if len(item.key) == _U64.size and not item.flags:
                entry = self._entry(item)
                if isinstance(entry, RaftEntry) and entry.index and entry.type in EntryType._value2member_map_:
                    yield entry
