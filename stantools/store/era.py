"""Which release of the server wrote a store, as far as its files show.

Facts: filestore.md section 0 (eras) and 3.7. The version number inside the files never changed, so only
what is there and what is missing shows it. Release 0.1 had another record layout: such a store cannot be read.
"""

from __future__ import annotations

from stantools.errors import StoreUnreadableError
from stantools.format.layout import FILE_HEADER, FILE_HEADER_SIZE, FILE_VERSION
from stantools.format.proto import store_pb2 as pb
from stantools.store.directory import Datastore
from stantools.store.mapping import Buffer, mapped
from stantools.store.serverinfo import written_by_0_1

_REMEDY = (
    "no released server after 0.1 reads it either; run the 0.1 server it was written by and republish its messages"
)


def refuse_0_1(store: Datastore) -> None:
    """Refuses a store of release 0.1, whose records have no CRC and whose clients are lines of text.

    Raises:
        StoreUnreadableError: It is one.
    """
    for path, is_old in ((store.server, written_by_0_1), (store.clients, _clients_of_0_1)):
        if path is None:
            continue
        try:
            with mapped(path) as buffer:
                old = is_old(buffer)
        except StoreUnreadableError:
            continue  # verify reports it; here it only means that the file says nothing
        if old:
            raise StoreUnreadableError(f"{path}: was written by NATS Streaming 0.1; that format is too old", _REMEDY)


def _clients_of_0_1(buffer: Buffer) -> bool:
    """Returns whether a clients.dat consists of the lines of release 0.1: `A <id> <inbox>` and `D <id>`."""
    if len(buffer) < FILE_HEADER_SIZE or FILE_HEADER.unpack_from(buffer)[0] != FILE_VERSION:
        return False
    line = bytes(buffer[FILE_HEADER_SIZE : FILE_HEADER_SIZE + 4096]).split(b"\r\n")
    words = line[0].split(b" ")
    return len(line) > 1 and ((words[0] == b"A" and len(words) == 3) or (words[0] == b"D" and len(words) == 2))


def era_of(info: pb.ServerInfo | None, *, has_indexes: bool, has_slices: bool) -> str:
    """Says which releases of the server a store looks like.

    Args:
        info: What server.dat holds.
        has_indexes: There is an index in any channel.
        has_slices: There is a data file in any channel.
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
