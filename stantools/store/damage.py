"""Deliberate damage to a sample store, of the kinds that crashes, disks and people cause.

The names and kinds follow damage that real servers have met (filestore.md sections 6.2, 7 and 12). Only for
disposable stores: everything here destroys data.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stantools.errors import UsageError
from stantools.format import kernels
from stantools.format.columns import MessageColumns
from stantools.format.crc import Crc
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    INDEX_RECORD_SIZE,
    RECORD_HEADER_SIZE,
)
from stantools.notation import counted
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE, SUBS_FILE, SliceFiles, list_channel
from stantools.store.mapping import mapped

_ROWS = 1 << 16


@dataclass(frozen=True)
class AppliedDamage:
    name: str
    file: str  #: the damaged file, relative to the store
    detail: str  #: a description for people


def check_damages(names: Sequence[str]) -> None:
    """Checks that all damages are known; UsageError if not."""
    for name in names:
        if name not in DAMAGES:
            raise UsageError(f"there is no damage called {name!r}", f"known are: {', '.join(DAMAGES)}")


def inflict(store: Path, channels: Sequence[str], names: Sequence[str], crc: Crc, seed: int) -> list[AppliedDamage]:
    """Applies damages to a healthy store in this order, to its channels in turn; equal seeds have equal effects."""
    check_damages(names)
    if names and not channels:
        raise UsageError("a store without channels cannot be damaged")
    done = []
    for number, name in enumerate(names):
        victim = _DamagedChannel(
            store, channels, number % len(channels), crc, random.Random(f"{seed}:{name}:{number}"), name
        )
        file, detail = DAMAGES[name].act(victim)
        done.append(AppliedDamage(name, str(file.relative_to(store)), detail))
    return done


@dataclass(frozen=True)
class _DamagedChannel:
    store: Path
    channels: Sequence[str]
    number: int
    crc: Crc
    rng: random.Random
    damage: str

    @property
    def channel(self) -> Path:
        return self.store / self.channels[self.number]

    def slices(self) -> list[SliceFiles]:
        found = [each for each in list_channel(self.channel).slices if each.data_size > FILE_HEADER_SIZE]
        if not found:
            raise self.unfit("no messages")
        return found

    def last(self) -> Path:
        return self.channel / f"msgs.{self.slices()[-1].number}.dat"

    def middle(self) -> Path:
        """The data file of a slice that is not the last, if there are several."""
        slices = self.slices()
        return self.channel / f"msgs.{slices[(len(slices) - 1) // 2].number}.dat"

    def records(self, path: Path) -> list[tuple[int, int]]:
        with mapped(path) as data:
            columns = MessageColumns(_ROWS)
            name = os.fsencode(self.channel.name)
            rows, _, _ = kernels.scan_messages(data, FILE_HEADER_SIZE, len(data), self.crc, name, columns)
            if not rows:
                raise self.unfit(f"no message in {path.name}")
            part = columns.take(rows)
            return list(zip(part.offset.tolist(), part.size.tolist(), strict=True))

    def existing(self, path: Path) -> Path:
        if not path.exists():
            raise self.unfit(f"no {path.name}")
        return path

    def unfit(self, reason: str) -> UsageError:
        return UsageError(f"the damage {self.damage!r} cannot be done: the channel {self.channel.name!r} has {reason}")


@dataclass(frozen=True)
class StoreDamage:
    description: str  #: its effect, for people
    act: Callable[[_DamagedChannel], tuple[Path, str]]  #: applies it; returns the file and a description


DAMAGES: dict[str, StoreDamage] = {}


def _damage(name: str, description: str) -> Callable[[Callable[[_DamagedChannel], tuple[Path, str]]], None]:
    def register(action: Callable[[_DamagedChannel], tuple[Path, str]]) -> None:
        DAMAGES[name] = StoreDamage(description, action)

    return register


def _cut(path: Path, size: int) -> tuple[Path, str]:
    os.truncate(path, size)
    return path, f"cut at offset {size}"


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _flip(victim: _DamagedChannel, path: Path, begin: int, end: int) -> tuple[Path, str]:
    offset, bit = victim.rng.randrange(begin, end), victim.rng.randrange(8)
    content = path.read_bytes()[offset]
    _overwrite(path, offset, bytes([content ^ 1 << bit]))
    return path, f"bit {bit} flipped in the byte at offset {offset}"


def _index(data: Path) -> Path:
    return data.with_suffix(".idx")


def _without_index(data: Path) -> str:
    _index(data).unlink(missing_ok=True)
    return f"; {_index(data).name} removed"


@_damage("cut-payload", "The last slice is cut inside the payload of its last record; the index is longer.")
def _cut_payload(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.last()
    offset, size = victim.records(path)[-1]
    return _cut(path, offset + RECORD_HEADER_SIZE + victim.rng.randrange(1, size))


@_damage("cut-header", "The last slice is cut inside the header of its last record; the index is longer.")
def _cut_header(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.last()
    return _cut(path, victim.records(path)[-1][0] + victim.rng.randrange(1, RECORD_HEADER_SIZE))


@_damage("zero-tail", "4096 zero bytes follow the last record, as some file systems leave them; the index is missing.")
def _zero_tail(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.last()
    _append(path, bytes(4096))
    return path, f"4096 zero bytes appended{_without_index(path)}"


@_damage("zeroed-records", "The last two records are zeros; size and index are unchanged.")
def _zeroed_records(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.last()
    offset, _ = victim.records(path)[-2:][0]
    size = path.stat().st_size - offset
    _overwrite(path, offset, bytes(size))
    return path, f"{counted(size, 'byte')} from offset {offset} on are zeros"


@_damage("garbage-tail", "57 random bytes follow the last record; the index is missing.")
def _garbage_tail(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.last()
    _append(path, victim.rng.randbytes(57))
    return path, f"57 random bytes appended{_without_index(path)}"


@_damage("garbage-middle", "Random bytes over the border of two records in the middle of a slice; the index is intact.")
def _garbage_middle(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.middle()
    records = victim.records(path)
    offset, size = records[len(records) // 2]
    begin = offset + RECORD_HEADER_SIZE + size // 2
    length = min(RECORD_HEADER_SIZE + size, path.stat().st_size - begin)
    _overwrite(path, begin, victim.rng.randbytes(length))
    return path, f"{length} random bytes at offset {begin}"


@_damage("flipped-byte", "One bit of a payload in the middle of a slice; the index is intact, so the server starts.")
def _flipped_byte(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.middle()
    records = victim.records(path)
    offset, size = records[len(records) // 2]
    return _flip(victim, path, offset + RECORD_HEADER_SIZE, offset + RECORD_HEADER_SIZE + size)


@_damage("flipped-last", "One bit of the payload of the very last record; the server does not start.")
def _flipped_last(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.last()
    offset, size = victim.records(path)[-1]
    return _flip(victim, path, offset + RECORD_HEADER_SIZE, offset + RECORD_HEADER_SIZE + size)


@_damage("flipped-length", "One bit of a length in the middle of a slice; the index is missing.")
def _flipped_length(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.middle()
    records = victim.records(path)
    offset, _ = records[len(records) // 2]
    _, detail = _flip(victim, path, offset, offset + 2)
    return path, f"{detail}, the length of a record{_without_index(path)}"


@_damage("lost-index", "The index of a slice is missing; the server rebuilds it.")
def _lost_index(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.existing(_index(victim.middle()))
    path.unlink()
    return path, "removed"


@_damage("short-index", "The last index lacks its last three records; the server reuses their sequences.")
def _short_index(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.existing(_index(victim.last()))
    return _cut(path, max(path.stat().st_size - 3 * INDEX_RECORD_SIZE, FILE_HEADER_SIZE))


@_damage("damaged-index", "One bit of an index record; the server rebuilds the index.")
def _damaged_index(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.existing(_index(victim.middle()))
    return _flip(victim, path, FILE_HEADER_SIZE, path.stat().st_size)


@_damage("stale-index", "An index without data file, where the next slice will be.")
def _stale_index(victim: _DamagedChannel) -> tuple[Path, str]:
    last = victim.existing(_index(victim.last()))
    path = last.with_name(f"msgs.{victim.slices()[-1].number + 1}.idx")
    path.write_bytes(last.read_bytes())
    return path, f"a copy of {last.name}, without data file"


@_damage("lost-slice", "A slice is missing with its index.")
def _lost_slice(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.middle()
    path.unlink()
    return path, f"removed{_without_index(path)}"


@_damage("duplicated-slice", "A copy of the first slice, under the next free number.")
def _duplicated_slice(victim: _DamagedChannel) -> tuple[Path, str]:
    slices = victim.slices()
    first = victim.channel / f"msgs.{slices[0].number}.dat"
    path = first.with_name(f"msgs.{slices[-1].number + 1}.dat")
    for source, copy in ((first, path), (_index(first), _index(path))):
        if source.exists():
            copy.write_bytes(source.read_bytes())
    return path, f"a copy of {first.name}"


@_damage("foreign-slice", "The first slice of another channel, under the next free number.")
def _foreign_slice(victim: _DamagedChannel) -> tuple[Path, str]:
    if len(victim.channels) < 2:
        raise victim.unfit("no other beside it")
    other = victim.store / victim.channels[(victim.number + 1) % len(victim.channels)]
    source = victim.existing(other / "msgs.1.dat")
    path = victim.channel / f"msgs.{victim.slices()[-1].number + 1}.dat"
    path.write_bytes(source.read_bytes())
    _index(path).write_bytes(victim.existing(_index(source)).read_bytes())
    return path, f"a copy of {source.name} of {other.name}"


@_damage("sequence-restart", "A server without server.dat restarted at sequence 1, after the old messages (W1).")
def _sequence_restart(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.channel / f"msgs.{victim.slices()[0].number}.dat"
    records = victim.records(path)
    count = min(len(records), 5)
    name = os.fsencode(victim.channel.name)
    sequences = np.arange(1, count + 1, dtype=np.uint64)
    times = np.full(count, 1_800_000_000_000_000_000, np.int64) + np.arange(count)
    payloads = [b"after the restart %d" % number for number in range(1, count + 1)]
    encoded, sizes = kernels.encode_messages(name, sequences, times, None, payloads, victim.crc)
    # That server took the file for empty, so its index counts offsets from the first record on.
    lengths = sizes.astype(np.int64) + RECORD_HEADER_SIZE
    offsets = FILE_HEADER_SIZE + np.cumsum(lengths) - lengths
    _append(path, encoded)
    _append(victim.existing(_index(path)), kernels.encode_index(sequences, offsets, times, sizes, victim.crc))
    (victim.store / SERVER_FILE).unlink(missing_ok=True)
    return path, f"sequences 1 to {count} once more at the end; {SERVER_FILE} removed"


def _remove(victim: _DamagedChannel, path: Path) -> tuple[Path, str]:
    victim.existing(path).unlink()
    return path, "removed"


@_damage("lost-server", "server.dat is missing.")
def _lost_server(victim: _DamagedChannel) -> tuple[Path, str]:
    return _remove(victim, victim.store / SERVER_FILE)


@_damage("damaged-server", "One bit of server.dat; the server does not start.")
def _damaged_server(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.existing(victim.store / SERVER_FILE)
    return _flip(victim, path, FILE_HEADER_SIZE + RECORD_HEADER_SIZE, path.stat().st_size)


@_damage("lost-clients", "clients.dat is missing; the server deletes members of durable queue groups (W16).")
def _lost_clients(victim: _DamagedChannel) -> tuple[Path, str]:
    return _remove(victim, victim.store / CLIENTS_FILE)


@_damage("empty-clients", "clients.dat has 0 bytes, after a crash at its creation; the server does not start (W15).")
def _empty_clients(victim: _DamagedChannel) -> tuple[Path, str]:
    return _cut(victim.existing(victim.store / CLIENTS_FILE), 0)


@_damage("damaged-clients", "One bit of the first record of clients.dat; the server does not start.")
def _damaged_clients(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.existing(victim.store / CLIENTS_FILE)
    begin = FILE_HEADER_SIZE + RECORD_HEADER_SIZE
    if path.stat().st_size <= begin + RECORD_HEADER_SIZE:
        raise victim.unfit("no clients")
    return _flip(victim, path, begin, begin + RECORD_HEADER_SIZE)


@_damage("lost-subs", "subs.dat is missing with all durables; the server starts without a warning.")
def _lost_subs(victim: _DamagedChannel) -> tuple[Path, str]:
    return _remove(victim, victim.channel / SUBS_FILE)


@_damage("cut-subs", "subs.dat is cut inside its last record.")
def _cut_subs(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.existing(victim.channel / SUBS_FILE)
    size = path.stat().st_size
    if size < FILE_HEADER_SIZE + 2 * RECORD_HEADER_SIZE:
        raise victim.unfit("no subscriptions")
    return _cut(path, size - 2)


@_damage("damaged-subs", "One bit in the middle of subs.dat; the server does not start.")
def _damaged_subs(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.existing(victim.channel / SUBS_FILE)
    size = path.stat().st_size
    if size < FILE_HEADER_SIZE + 2 * RECORD_HEADER_SIZE:
        raise victim.unfit("no subscriptions")
    return _flip(victim, path, size // 3, 2 * size // 3)


@_damage("zero-tail-subs", "512 zero bytes follow the last record of subs.dat; the server cuts them off.")
def _zero_tail_subs(victim: _DamagedChannel) -> tuple[Path, str]:
    path = victim.existing(victim.channel / SUBS_FILE)
    _append(path, bytes(512))
    return path, "512 zero bytes appended"


@_damage("leftovers", "Remains of crashes: temporary files of compactions, the witness of a truncation.")
def _leftovers(victim: _DamagedChannel) -> tuple[Path, str]:
    subs = victim.existing(victim.channel / SUBS_FILE)
    path = victim.store / "subs123456789"
    path.write_bytes(subs.read_bytes())
    (victim.store / ".truncate.lck").touch()
    return path, f"a copy of {subs.parent.name}/{SUBS_FILE}; .truncate.lck created"
