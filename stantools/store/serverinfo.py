"""server.dat: the server's identity, a single record in its own file; and the release that it indicates.

Facts: filestore.md sections 3.2 and 7.3. The server is strict here: with a byte too many or too few it does not
start, and its truncate option does not help.

Releases: filestore.md sections 0 (eras) and 3.7. The version number inside the files never changed, so only the
presence and absence of fields and files indicates the release. Release 0.1 had another record layout: such a store
cannot be read.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stantools.errors import RefusedError, StoreUnreadableError, UsageError
from stantools.escaping import text
from stantools.format import gogo
from stantools.format.crc import Crc
from stantools.format.envelope import (
    EOF_TEXT,
    FILE_HEADER_BYTES,
    PADDED_TEXT,
    RecordEnvelope,
    check_file_version,
    crc_error_text,
    encode,
    read_record,
)
from stantools.format.layout import FILE_HEADER, FILE_HEADER_SIZE, FILE_VERSION, ScanStop
from stantools.format.proto import store_pb2 as pb
from stantools.store.directory import Datastore
from stantools.store.mapping import Buffer, mapped

#: Name of the file in the server's texts when it could not be opened; later texts have its full path.
SERVER_FILE_WHEN_OPENED = "server.dat"

#: bytes searched for the remains of a record
_MAX_REMAINS = 1 << 16


class ServerOutcome(enum.StrEnum):
    RECOVERED = "recovered"
    ABSENT = "absent"  #: the file does not exist: a new identity is made
    REFUSED = "refused"  #: the server does not start


@dataclass(frozen=True)
class ServerFile:
    outcome: ServerOutcome
    #: the identity, also if the server refuses the file for bytes after the record
    info: pb.ServerInfo | None = None
    error: str = ""  #: reason of the refusal, without the prefix that names the file; "" if none
    #: The error comes from the version header; the server's text then names the file without its path.
    at_open: bool = False
    reported: bool = False  #: the server logs two more lines about the corrupted file before it ends
    stop: ScanStop | None = None  #: problem of the record, if that is the reason
    record: RecordEnvelope | None = None  #: the part of the record that is there

    @property
    def rewritten(self) -> bool:
        """The server rewrites the file at its start: it is from before 0.3.4 and names no SubClose subject."""
        return self.outcome is ServerOutcome.RECOVERED and self.info is not None and not self.info.sub_close


def read_server_info(buffer: Buffer | None, crc: Crc) -> ServerFile:
    """Reads server.dat as the server does; `buffer` is None if the file is missing."""
    if buffer is None:
        return ServerFile(ServerOutcome.ABSENT)
    if text := check_file_version(buffer):
        return ServerFile(ServerOutcome.REFUSED, error=text, at_open=True)
    stop, record = read_record(buffer, FILE_HEADER_SIZE, len(buffer), typed=False, crc=crc)
    if stop in (ScanStop.END, ScanStop.DANGLING):
        return ServerFile(ServerOutcome.ABSENT, stop=stop, record=record)
    if stop is not None:
        return ServerFile(
            ServerOutcome.REFUSED, error=_stop_text(stop, record, crc), reported=True, stop=stop, record=record
        )
    assert record is not None
    info, error = None, ""
    try:
        info = gogo.decode(pb.ServerInfo, record.payload)
    except gogo.DecodeError as problem:
        error = str(problem)
    if record.end != len(buffer):
        error = f"incorrect file size, expected {record.end} bytes, got {len(buffer)} bytes"
    outcome = ServerOutcome.REFUSED if error else ServerOutcome.RECOVERED
    return ServerFile(outcome, info, error, record=record)


def _stop_text(stop: ScanStop, record: RecordEnvelope | None, crc: Crc) -> str:
    if stop is ScanStop.ZEROS:
        return PADDED_TEXT
    if stop is ScanStop.BAD_CRC:
        assert record is not None
        return crc_error_text(record.crc, crc(record.payload))
    return EOF_TEXT


def new_server_info(cluster_id: str | bytes) -> pb.ServerInfo:
    cluster = cluster_id.encode() if isinstance(cluster_id, str) else cluster_id
    return pb.ServerInfo(
        cluster_id=cluster,
        discovery=b"_STAN.discover." + cluster,
        publish=b"_STAN.pub." + cluster,
        subscribe=b"_STAN.sub." + cluster,
        unsubscribe=b"_STAN.unsub." + cluster,
        close=b"_STAN.close." + cluster,
        sub_close=b"_STAN.subclose." + cluster,
        acks_subs=b"_STAN.ack." + cluster,
    )


def encode_server_file(info: pb.ServerInfo, crc: Crc) -> bytes:
    return FILE_HEADER_BYTES + encode(info.SerializeToString(), crc)


def written_by_0_1(buffer: Buffer) -> bool:
    """Returns whether a server.dat is from release 0.1, whose records have a size and no CRC.

    Neither later servers nor this library can read such a store.
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
    """Returns the cluster id in a server.dat or its remains, None if the file is missing or names none."""
    data = _head(path)
    if data is None:
        return None
    info = read_server_info(memoryview(data), crc).info
    return text(info.cluster_id) if info else guess_cluster_id(data)


def _head(path: Path | None) -> bytes | None:
    """Returns the bytes of a server.dat that may hold a record; None if it is missing or unreadable."""
    if path is None:
        return None
    try:
        with mapped(path) as buffer:
            return bytes(buffer[:_MAX_REMAINS])
    except StoreUnreadableError:
        return None


def guess_cluster_id(data: bytes) -> str | None:
    """Reads the cluster id from a damaged record: the common ending of most of its subjects, if two agree.

    Seven of its fields end in the cluster id (filestore.md section 3.2), so it nearly always survives.
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


def readable_server_info(store: Datastore) -> pb.ServerInfo | None:
    """Returns the record in a store's server.dat; None if the file is missing or the record cannot be read."""
    data = _head(store.server)
    return None if data is None else read_server_info(memoryview(data), store.crc).info


#: cluster ids that the server accepts
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]+")


def find_identity(store: Datastore, cluster_id: str | None) -> tuple[pb.ServerInfo, str]:
    """Returns the server record for a new store made of this one and, if it is not the old one, its origin."""
    data = _head(store.server)
    if data is not None:
        server = read_server_info(memoryview(data), store.crc)
        if server.info is not None:
            return server.info, "" if not server.error else f"the record was read in spite of: {server.error}"
    guessed = guess_cluster_id(data or b"")
    if cluster_id:
        if not _CLUSTER_ID.fullmatch(cluster_id):
            raise UsageError(
                f"{cluster_id!r} is not a cluster id: it has letters, digits, - and _ only",
                "give the cluster id that clients connect with (the server's default is test-cluster)",
            )
        note = "made from the given cluster id"
        if guessed and guessed != cluster_id:
            note += f" (the remains of server.dat say {guessed!r})"
        return new_server_info(cluster_id), note
    if guessed:
        return new_server_info(guessed), f"rebuilt from the remains of server.dat: cluster id {guessed!r}"
    raise RefusedError(
        f"{store.path}: the cluster id can no longer be read from server.dat",
        "give the cluster id that clients connect with: --cluster-id ID (the server's default is test-cluster)",
    )


_TOO_OLD = "no server after 0.1 reads it either; run the 0.1 server that wrote it and republish its messages"


def refuse_0_1(store: Datastore) -> None:
    """Refuses a store of release 0.1, whose records have no CRC and whose clients are lines of text."""
    for path, is_old in ((store.server, written_by_0_1), (store.clients, _clients_of_0_1)):
        if path is None:
            continue
        try:
            with mapped(path) as buffer:
                old = is_old(buffer)
        except StoreUnreadableError:
            continue  # verify reports it; here it only means that the file gives no information
        if old:
            raise StoreUnreadableError(f"{path}: was written by NATS Streaming 0.1; that format is too old", _TOO_OLD)


def _clients_of_0_1(buffer: Buffer) -> bool:
    """Returns whether a clients.dat consists of the lines of release 0.1: `A <id> <inbox>` and `D <id>`."""
    if len(buffer) < FILE_HEADER_SIZE or FILE_HEADER.unpack_from(buffer)[0] != FILE_VERSION:
        return False
    line = bytes(buffer[FILE_HEADER_SIZE : FILE_HEADER_SIZE + 4096]).split(b"\r\n")
    words = line[0].split(b" ")
    return len(line) > 1 and ((words[0] == b"A" and len(words) == 3) or (words[0] == b"D" and len(words) == 2))


def era_of(info: pb.ServerInfo | None, *, has_indexes: bool, has_slices: bool) -> str:
    """Returns the releases of the server that may have written a store, for people.

    `has_indexes` and `has_slices`: some channel has an index, or a data file.
    """
    if has_slices and not has_indexes:
        return "0.2, or the indexes were lost"
    if info is None:
        return "unknown"
    if not info.sub_close:
        return "0.3.0 to 0.3.3"
    if not info.acks_subs:
        return "0.3.4 to 0.3.8"
    if info.node_id:
        return "0.8 or later, clustered"
    return "0.4 or later"
