"""How a store is to be read: the CRC polynomial, whether CRCs are checked, the encryption key.

The store records neither its polynomial nor whether it is encrypted (weakness W25), so both come from the
user, or follow from the records themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.format.crc import IEEE, KNOWN, Crc, detect
from stantools.format.layout import (
    FILE_HEADER_SIZE,
    INDEX_RECORD,
    INDEX_RECORD_SIZE,
    MAX_TYPED_PAYLOAD,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
)
from stantools.store.directory import Datastore, open_datastore
from stantools.store.mapping import Buffer, mapped
from stantools.store.serverinfo import refuse_0_1

#: Records of one file, and channels of a store, that are looked at to find the polynomial.
_SAMPLES_OF_FILE = 4
_CHANNELS_SAMPLED = 8
#: Bigger payloads are skipped: they show no more than small ones.
_SAMPLE_SIZE = 1 << 20

#: A payload and the CRC that is stored for it.
Sample = tuple[bytes, int]


@dataclass(frozen=True)
class ReadOptions:
    """How to read a store."""

    polynomial: int | None = None  #: the CRC polynomial in reflected form, or None to find it out from the store
    check_crc: bool = True  #: False accepts records with a wrong CRC, as the server does with `-file_crc=false`
    #: The key that the server was given, or None to leave payloads as they are.
    encryption_key: bytes | None = field(default=None, repr=False)
    accept_unreadable: bool = False  #: go on without the files that this user is not permitted to read


def open_store(path: Path | str, options: ReadOptions | None = None, channels: Sequence[str] = ()) -> Datastore:
    """Opens a store to read it: its files are listed, its CRC and its key are known.

    Args:
        path: The store.
        options: How to read it.
        channels: Patterns of the channels that are to be read; all, if none is given.

    Raises:
        NotPermittedError: Files of it may not be read.
        StoreUnreadableError: It is not a store, cannot be listed, or is of release 0.1.
    """
    store = open_datastore(path)
    options = options or ReadOptions()
    if not options.accept_unreadable:
        store.check_permitted(store.matching(channels))
    refuse_0_1(store)
    store.crc, store.key = resolve_crc(store, options), options.encryption_key
    return store


def resolve_crc(store: Datastore, options: ReadOptions) -> Crc:
    """Returns the CRC of a store: the one asked for, or the one that its records were written with.

    A healthy store of the default polynomial costs one look at `server.dat`. Where the records do not tell
    (there are none, or all are damaged) it is the default.
    """
    if options.polynomial is not None:
        return Crc(options.polynomial, options.check_crc)
    return _resolve(_store_samples(store), options)


def resolve_file_crc(path: Path, buffer: Buffer, options: ReadOptions) -> Crc:
    """Returns the CRC of a single file; see `resolve_crc`."""
    if options.polynomial is not None:
        return Crc(options.polynomial, options.check_crc)
    return _resolve(islice(file_samples(path.name, buffer), _SAMPLES_OF_FILE * _CHANNELS_SAMPLED), options)


def _resolve(samples: Iterator[Sample], options: ReadOptions) -> Crc:
    first = next(samples, None)
    default = Crc(IEEE, options.check_crc)
    if first is None or default(first[0]) == first[1]:
        return default
    return Crc(detect([first, *samples]) or IEEE, options.check_crc)


def polynomial_name(polynomial: int) -> str:
    """Returns how a polynomial is called: its name, if any, and the number for the server's option."""
    for name, number in KNOWN.items():
        if number == polynomial:
            return f"{name} ({polynomial})"
    return f"{polynomial} (0x{polynomial:08x})"


def _store_samples(store: Datastore) -> Iterator[Sample]:
    """Records from every kind of file, the most telling first; files that cannot be read are skipped."""
    for path in (store.server, store.clients):
        if path is not None:
            yield from _samples_of(path)
    for name in store.channel_names[:_CHANNELS_SAMPLED]:
        try:
            channel = store.channel(name)
        except StoreUnreadableError:
            continue
        files = channel.slices or channel.archived
        for path in (files[-1].index if files else None, files[-1].data if files else None, channel.subs):
            if path is not None:
                yield from _samples_of(path)


def _samples_of(path: Path) -> list[Sample]:
    try:
        with mapped(path) as buffer:
            return list(islice(file_samples(path.name, buffer), _SAMPLES_OF_FILE))
    except StoreUnreadableError:
        return []


def file_samples(name: str, buffer: Buffer) -> Iterator[Sample]:
    """Walks the records of a file of any kind as far as their sizes make sense.

    Args:
        name: The file's name; what kind it is follows from it.
        buffer: The file's bytes.

    Yields:
        Payloads that are not empty, each with its stored CRC. Damaged ones may be among them.
    """
    if ".idx" in name:
        for at in range(FILE_HEADER_SIZE, len(buffer) - INDEX_RECORD_SIZE + 1, INDEX_RECORD_SIZE):
            record = bytes(buffer[at : at + INDEX_RECORD_SIZE])
            if any(record):
                yield record[:-4], INDEX_RECORD.unpack(record)[4]
        return
    typed = not name.startswith(("server.dat", "msgs."))
    at = FILE_HEADER_SIZE
    while at + RECORD_HEADER_SIZE <= len(buffer):
        size, crc = RECORD_HEADER.unpack_from(buffer, at)
        at += RECORD_HEADER_SIZE
        if typed:
            size &= MAX_TYPED_PAYLOAD
        if size > len(buffer) - at or (size == 0 and not typed):
            return
        if 0 < size <= _SAMPLE_SIZE:
            yield bytes(buffer[at : at + size]), crc
        at += size
