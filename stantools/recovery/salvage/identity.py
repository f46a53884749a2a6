"""The identity of a store: server.dat, or what can be rebuilt of it.

Facts: filestore.md section 3.2. Seven of the record's fields end in the cluster id, so a damaged record
nearly always still tells it.
"""

from __future__ import annotations

from collections import Counter

from stantools.errors import RefusedError, StoreUnreadableError
from stantools.format.crc import Crc
from stantools.format.proto import store_pb2 as pb
from stantools.store.directory import Datastore
from stantools.store.mapping import mapped
from stantools.store.serverinfo import new_server_info, read_server_info


def find_identity(store: Datastore, crc: Crc, cluster_id: str | None) -> tuple[pb.ServerInfo, str]:
    """Returns the server record for the new store and, if it is not the old one, where it comes from.

    Raises:
        RefusedError: The cluster id cannot be told and none was given.
    """
    data = _read(store)
    if data is not None:
        server = read_server_info(memoryview(data), crc)
        if server.info is not None:
            return server.info, "" if not server.error else f"the record was read in spite of: {server.error}"
    guessed = guess_cluster_id(data or b"")
    if cluster_id:
        note = "made from the given cluster id"
        if guessed and guessed != cluster_id:
            note += f" (the remains of server.dat say {guessed!r})"
        return new_server_info(cluster_id), note
    if guessed:
        return new_server_info(guessed), f"rebuilt from the remains of server.dat: cluster id {guessed!r}"
    raise RefusedError(
        f"{store.path}: server.dat does not tell the cluster id any more",
        "give the cluster id that clients connect with: --cluster-id ID (the server's default is test-cluster)",
    )


def _read(store: Datastore) -> bytes | None:
    if store.server is None:
        return None
    try:
        with mapped(store.server) as buffer:
            return bytes(buffer[: 1 << 16])
    except StoreUnreadableError:
        return None


def guess_cluster_id(data: bytes) -> str | None:
    """Reads the cluster id from a damaged record: what most of its subjects end in, if two agree."""
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
