"""Writing a whole new store: server.dat, clients.dat, and per channel subs.dat and slices.

Nothing is synced here: a new store is built in a directory that `atomic.new_directory` syncs as a whole and then
renames.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES
from stantools.format.logencode import encode_client
from stantools.format.proto import store_pb2 as pb
from stantools.store.directory import CLIENTS_FILE, SERVER_FILE, SUBS_FILE
from stantools.store.durable import write_all, writing
from stantools.store.limits import SliceLimits
from stantools.store.logwriter import Live, encode_live
from stantools.store.serverinfo import encode_server_file
from stantools.store.slicewriter import SliceWriter, WriteOptions

_CHUNK = 1 << 20


class StoreWriter:
    """Fills an empty directory with a store; all methods raise StoreUnwritableError."""

    def __init__(self, directory: Path, crc: Crc) -> None:
        self.directory = directory
        self._crc = crc

    def write_server(self, info: pb.ServerInfo) -> None:
        _write(self.directory / SERVER_FILE, [encode_server_file(info, self._crc)])

    def write_clients(self, clients: Iterable[pb.ClientInfo]) -> None:
        records = (encode_client(client, self._crc) for client in clients)
        _write(self.directory / CLIENTS_FILE, _file(records))

    def channel(self, name: bytes) -> Path:
        """Returns the directory of a channel; creates it if needed."""
        path = self.directory / os.fsdecode(name)
        with writing(path):
            path.mkdir(exist_ok=True)
        return path

    def write_subs(self, channel: bytes, subscriptions: Iterable[Live]) -> None:
        """Writes a channel's subs.dat as a compaction does (filestore.md section 8).

        Each subscription comes with its pending sequences in ascending order.
        """
        self.write_sub_records(channel, (encode_live(state, pending, self._crc) for state, pending in subscriptions))

    def write_sub_records(self, channel: bytes, records: Iterable[bytes]) -> None:
        """Writes a channel's subs.dat from encoded records."""
        _write(self.channel(channel) / SUBS_FILE, _file(records))

    def slices(
        self, channel: bytes, limits: SliceLimits, *, fill_gaps: bool = False, last_number: int = 0
    ) -> SliceWriter:
        """Returns a writer for a channel's messages, which does not sync; the first slice is `last_number` + 1."""
        options = WriteOptions(limits, sync=False, fill_gaps=fill_gaps)
        return SliceWriter(self.channel(channel), channel, self._crc, options, last_number=last_number)


def _file(records: Iterable[bytes]) -> Iterable[bytes]:
    """Prepends a version header to records, and joins them to big pieces."""
    gathered = bytearray(FILE_HEADER_BYTES)
    for record in records:
        gathered += record
        if len(gathered) >= _CHUNK:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    with writing(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            for piece in pieces:
                write_all(descriptor, piece)
        finally:
            os.close(descriptor)
