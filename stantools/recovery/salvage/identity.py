"""The identity of a store: server.dat, or what can be rebuilt of it."""

from __future__ import annotations

from stantools.errors import RefusedError, StoreUnreadableError
from stantools.format.proto import store_pb2 as pb
from stantools.store.directory import Datastore
from stantools.store.mapping import mapped
from stantools.store.serverinfo import guess_cluster_id, new_server_info, read_server_info


def find_identity(store: Datastore, cluster_id: str | None) -> tuple[pb.ServerInfo, str]:
    """Returns the server record for the new store and, if it is not the old one, where it comes from.

    Raises:
        RefusedError: The cluster id cannot be determined and none was given.
    """
    data = _read(store)
    if data is not None:
        server = read_server_info(memoryview(data), store.crc)
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
        f"{store.path}: the cluster id can no longer be read from server.dat",
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
