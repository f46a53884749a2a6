"""Small stores for the forecast tests, made record by record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stantools.format import kernels
from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES, encode
from stantools.format.layout import INDEX_RECORD, ClientRecord, SubRecord
from stantools.format.proto import store_pb2 as pb
from stantools.store.serverinfo import encode_server_file, new_server_info

CRC = Crc()
#: Timestamp of sequence n is START + n seconds.
START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def write_server(root: Path, cluster_id: str = "test-cluster") -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "server.dat").write_bytes(encode_server_file(new_server_info(cluster_id), CRC))


def write_clients(root: Path, *names: str) -> None:
    infos = (pb.ClientInfo(id=name.encode(), hb_inbox=b"_HB." + name.encode()) for name in names)
    records = (encode(info.SerializeToString(), CRC, ClientRecord.ADD) for info in infos)
    (root / "clients.dat").write_bytes(FILE_HEADER_BYTES + b"".join(records))


def write_subs(root: Path, channel: str, *subs: tuple[pb.SubState, Sequence[int]]) -> None:
    (root / channel).mkdir(exist_ok=True)
    content = FILE_HEADER_BYTES
    for state, pending in subs:
        content += encode(state.SerializeToString(), CRC, SubRecord.NEW)
        for sequence in pending:
            message = pb.SubStateUpdate(id=state.id, seqno=sequence)
            content += encode(message.SerializeToString(), CRC, SubRecord.MSG)
    (root / channel / "subs.dat").write_bytes(content)


def write_slice(
    root: Path,
    channel: str,
    number: int,
    sequences: Sequence[int],
    *,
    payloads: Sequence[bytes] | None = None,
    index: bool = True,
) -> None:
    """Writes a slice; the payload of each message is its sequence in decimal unless given."""
    directory = root / channel
    directory.mkdir(parents=True, exist_ok=True)
    payloads = payloads or [str(sequence).encode() for sequence in sequences]
    times = [START + sequence * SECOND for sequence in sequences]
    data, sizes = kernels.encode_messages(channel.encode(), sequences, times, None, payloads, CRC)
    (directory / f"msgs.{number}.dat").write_bytes(FILE_HEADER_BYTES + data)
    if index:
        lengths = sizes.astype(np.int64) + 8
        offsets = 4 + np.concatenate(([0], np.cumsum(lengths)[:-1]))[: len(sizes)]
        records = kernels.encode_index(sequences, offsets, times, sizes, CRC)
        (directory / f"msgs.{number}.idx").write_bytes(FILE_HEADER_BYTES + records)
    if not (directory / "subs.dat").exists():
        (directory / "subs.dat").write_bytes(FILE_HEADER_BYTES)


def read_index(path: Path) -> list[tuple[int, int, int, int]]:
    """Sequence, offset, timestamp and size of the records of an index."""
    data = path.read_bytes()[4:]
    return [record[:4] for record in INDEX_RECORD.iter_unpack(data)]


def write_index(path: Path, records: Sequence[tuple[int, int, int, int]]) -> None:
    sequences, offsets, times, sizes = zip(*records, strict=True)
    path.write_bytes(FILE_HEADER_BYTES + kernels.encode_index(sequences, offsets, times, sizes, CRC))


def healthy(root: Path, *, channel: str = "foo", slices: int = 3, each: int = 10) -> Path:
    """A store of one channel with slices of the same number of messages."""
    write_server(root)
    write_clients(root)
    for number in range(slices):
        write_slice(root, channel, number + 1, range(1 + number * each, 1 + (number + 1) * each))
    return root
