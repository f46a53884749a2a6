"""server.dat: the server's identity, one record in a file of its own.

Facts: filestore.md sections 3.2 and 7.3. The server is strict here: a byte too many or too few and it
does not start, and its truncate option does not help.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.envelope import (
    EOF_TEXT,
    FILE_HEADER_BYTES,
    PADDED_TEXT,
    Record,
    check_file_version,
    crc_error_text,
    encode,
    read_record,
)
from stantools.format.layout import FILE_HEADER_SIZE, Stop
from stantools.format.proto import store_pb2 as pb
from stantools.store.mapping import Buffer, mapped

#: What the texts of a server call the file when it could not even be opened; later it is named with its full path.
SERVER_FILE_WHEN_OPENED = "server.dat"

#: Bytes in which the remains of a record are looked for.
_REMAINS = 1 << 16


class ServerOutcome(enum.StrEnum):
    """What the server makes of its file."""

    RECOVERED = "recovered"
    ABSENT = "absent"  #: nothing there yet: a new identity is made
    REFUSED = "refused"  #: the server does not start


@dataclass(frozen=True)
class ServerFile:
    """What was read from server.dat."""

    outcome: ServerOutcome  #: what the server makes of it
    #: The identity. Also there when the server refuses the file for what follows the record.
    info: pb.ServerInfo | None = None
    error: str = ""  #: why the server refuses it, without the words around it that name the file; else ""
    #: The error comes from the version header; the server's text then names the file without its path.
    at_open: bool = False
    reported: bool = False  #: the server logs two more lines about the corrupted file before it ends
    stop: Stop | None = None  #: what is wrong with the record, if the record is the problem
    record: Record | None = None  #: the record as far as it is there
    expected_size: int | None = None  #: bytes that the file should have; None where that cannot be determined

    @property
    def rewritten(self) -> bool:
        """The server writes the file anew at its start: it is from before 0.3.4 and names no SubClose subject."""
        return self.outcome is ServerOutcome.RECOVERED and self.info is not None and not self.info.sub_close

    @property
    def clustered(self) -> bool:
        """The store belongs to a clustered node."""
        return self.info is not None and bool(self.info.node_id)


def read_server_info(buffer: Buffer | None, crc: Crc) -> ServerFile:
    """Reads server.dat as the server does.

    Args:
        buffer: The file; None if it is missing.
        crc: The store's CRC.
    """
    if buffer is None:
        return ServerFile(ServerOutcome.ABSENT)
    if text := check_file_version(buffer):
        return ServerFile(ServerOutcome.REFUSED, error=text, at_open=True)
    stop, record = read_record(buffer, FILE_HEADER_SIZE, len(buffer), typed=False, crc=crc)
    if stop in (Stop.END, Stop.DANGLING):
        return ServerFile(ServerOutcome.ABSENT, stop=stop, record=record)
    if stop is not None:
        return ServerFile(
            ServerOutcome.REFUSED, error=_stop_text(stop, record, crc), reported=True, stop=stop, record=record
        )
    assert record is not None
    info, error = _decode(record)
    if record.end != len(buffer):
        error = f"incorrect file size, expected {record.end} bytes, got {len(buffer)} bytes"
    outcome = ServerOutcome.REFUSED if error else ServerOutcome.RECOVERED
    return ServerFile(outcome, info, error, record=record, expected_size=record.end)


def _decode(record: Record) -> tuple[pb.ServerInfo | None, str]:
    try:
        return gogo.decode(pb.ServerInfo, record.payload), ""
    except gogo.DecodeError as error:
        return None, str(error)


def _stop_text(stop: Stop, record: Record | None, crc: Crc) -> str:
    if stop is Stop.ZEROS:
        return PADDED_TEXT
    if stop is Stop.BAD_CRC:
        assert record is not None
        return crc_error_text(record.crc, crc(record.payload))
    return EOF_TEXT


def new_server_info(cluster_id: str | bytes, node_id: str | bytes = "") -> pb.ServerInfo:
    """Makes the identity that a new server writes for itself.

    Args:
        cluster_id: The cluster id it is configured with.
        node_id: Its node id if it is clustered.
    """
    cluster = cluster_id.encode() if isinstance(cluster_id, str) else cluster_id
    node = node_id.encode() if isinstance(node_id, str) else node_id
    return pb.ServerInfo(
        cluster_id=cluster,
        discovery=b"_STAN.discover." + cluster,
        publish=b"_STAN.pub." + cluster,
        subscribe=b"_STAN.sub." + cluster,
        unsubscribe=b"_STAN.unsub." + cluster,
        close=b"_STAN.close." + cluster,
        sub_close=b"_STAN.subclose." + cluster,
        acks_subs=b"_STAN.ack." + cluster,
        node_id=node,
    )


def encode_server_file(info: pb.ServerInfo, crc: Crc) -> bytes:
    """Returns the bytes of a whole server.dat."""
    return FILE_HEADER_BYTES + encode(info.SerializeToString(), crc)


def written_by_0_1(buffer: Buffer) -> bool:
    """Returns whether a server.dat is from release 0.1, whose records have a size and no CRC.

    Later servers cannot read such a store, and neither can this library.
    """
    if check_file_version(buffer) or len(buffer) <= 2 * FILE_HEADER_SIZE:
        return False
    begin = 2 * FILE_HEADER_SIZE
    if int.from_bytes(buffer[FILE_HEADER_SIZE:begin], "little") != len(buffer) - begin:
        return False
    try:
        info = gogo.decode(pb.ServerInfo, buffer[begin:])
    except gogo.DecodeError:
        return False
    return bool(info.cluster_id and info.discovery)


def stored_cluster_id(path: Path | None, crc: Crc) -> str | None:
    """Returns the cluster id in a server.dat or in what is left of it, None where the file is missing or names none."""
    if path is None:
        return None
    try:
        with mapped(path) as buffer:
            info = read_server_info(buffer, crc).info
            left = bytes(buffer[:_REMAINS])
    except StoreUnreadableError:
        return None
    return info.cluster_id.decode("utf-8", "surrogateescape") if info else guess_cluster_id(left)


def guess_cluster_id(data: bytes) -> str | None:
    """Reads the cluster id from a damaged record: what most of its subjects end in, if two agree.

    Seven of its fields end in the cluster id (filestore.md section 3.2), so it is nearly always still there.
    """
    votes: Counter[bytes] = Counter()
    for part in data.split(b"_STAN.")[1:]:
        kind, _, rest = part.partition(b".")
        if kind not in (b"discover", b"pub", b"sub", b"unsub", b"close", b"subclose", b"ack"):
            continue
        # A subject ends where the tag of the next field begins: tag, length, `_STAN.`.
        end = rest[:-2] if len(rest) > 2 and kind != b"ack" else rest
        votes[end] += 1
    for candidate, count in votes.most_common(1):
        if count >= 2 and candidate and all(0x21 <= byte < 0x7F for byte in candidate):
            return candidate.decode("ascii")
    return None
