"""Parameters for reading a store: the CRC polynomial, whether CRCs are checked, the encryption key.

The store records neither its polynomial nor whether it is encrypted (weakness W25), so both come from the user, or
follow from the records themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from stantools.secret import Secret
from stantools.store.directory import Datastore, open_datastore
from stantools.store.mapping import Buffer, mapped
from stantools.store.serverinfo import refuse_0_1

#: records per file, and channels per store, examined to find the polynomial
_SAMPLES_OF_FILE = 4
_SAMPLED_CHANNELS = 8
#: Larger payloads are skipped: they show no more than small ones.
_SAMPLE_SIZE = 1 << 20

#: a payload and its stored CRC
Sample = tuple[bytes, int]


@dataclass(frozen=True)
class ReadOptions:
    polynomial: int | None = None  #: the CRC polynomial in reflected form, or None to detect it
    check_crc: bool = True  #: False accepts records with a wrong CRC, as the server does with `-file_crc=false`
    #: the server's key, or None to leave payloads as they are stored
    encryption_key: bytes | None = field(default=None, repr=False)
    accept_unreadable: bool = False  #: continue without the files that this user is not permitted to read
    sql_driver: str | None = None  #: `mysql` or `postgres`, for a database whose address does not tell
    sql_password: bytes | None = field(default=None, repr=False)  #: password of a database
    key_words: tuple[str, ...] = ()  #: the words of a command that give the key

    def with_secrets(self, key: Secret, password: Secret) -> ReadOptions:
        """Returns the options with secrets that are looked up on this machine."""
        return replace(self, encryption_key=key.key(), sql_password=password.key())


def open_store(path: Path | str, options: ReadOptions | None = None, channels: Sequence[str] = ()) -> Datastore:
    """Opens a store for reading: lists its files and determines its CRC and its key.

    `channels` are patterns of the channels to read; none selects all.
    """
    return prepare_store(open_datastore(path), options or ReadOptions(), channels)


def prepare_store(store: Datastore, options: ReadOptions, channels: Sequence[str] = ()) -> Datastore:
    """Prepares a listed store for reading, as `open_store` does, and returns it."""
    if not options.accept_unreadable:
        store.check_permitted(store.matching(channels))
    refuse_0_1(store)
    store.crc, store.key = resolve_crc(store, options), options.encryption_key
    return store


def resolve_crc(store: Datastore, options: ReadOptions) -> Crc:
    """Returns the CRC of a store: the requested one, or the one of its records.

    A healthy store of the default polynomial costs one read of `server.dat`. If the records do not tell (there are
    none, or all are damaged), it is the default.
    """
    if options.polynomial is not None:
        return Crc(options.polynomial, options.check_crc)
    return _resolve(_store_samples(store), options)


def resolve_file_crc(path: Path, buffer: Buffer, options: ReadOptions) -> Crc:
    if options.polynomial is not None:
        return Crc(options.polynomial, options.check_crc)
    return _resolve(islice(file_samples(path.name, buffer), _SAMPLES_OF_FILE * _SAMPLED_CHANNELS), options)


def _resolve(samples: Iterator[Sample], options: ReadOptions) -> Crc:
    first = next(samples, None)
    default = Crc(IEEE, options.check_crc)
    if first is None or default(first[0]) == first[1]:
        return default
    return Crc(detect([first, *samples]) or IEEE, options.check_crc)


def polynomial_name(polynomial: int) -> str:
    for name, number in KNOWN.items():
        if number == polynomial:
            return f"{name} ({polynomial})"
    return f"{polynomial} (0x{polynomial:08x})"


def _store_samples(store: Datastore) -> Iterator[Sample]:
    """Records from every kind of file, the most telling first; files that cannot be read are skipped."""
    for path in (store.server, store.clients):
        if path is not None:
            yield from _samples_of(path)
    for name in store.channel_names[:_SAMPLED_CHANNELS]:
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
    """Walks the records of a file of any kind, identified by its name, as far as their sizes make sense.

    Yields non-empty payloads, each with its stored CRC. Some may be damaged.
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
