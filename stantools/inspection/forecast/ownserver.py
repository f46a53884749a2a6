"""How the server that a store belongs to would be started, as far as the store itself tells."""

from __future__ import annotations

from stantools.format.crc import Crc
from stantools.inspection.forecast.access import CurrentUser
from stantools.inspection.forecast.model import DEFAULT_CLUSTER_ID, SERVER_VERSIONS, ServerOptions
from stantools.store.directory import Datastore
from stantools.store.options import ReadOptions
from stantools.store.serverinfo import stored_cluster_id


def own_server(
    store: Datastore, crc: Crc, reading: ReadOptions, *, version: str = SERVER_VERSIONS[0], workers: int = 2
) -> ServerOptions:
    """Returns the options of a start by the user who asks; what the store does not tell is the server's default.

    The cluster id is the store's own: a start with another one fails anyway.

    Args:
        store: The store.
        crc: Its CRC.
        reading: Whether CRCs are checked, and the encryption key.
        version: The server's version.
        workers: Threads of the forecast.
    """
    return ServerOptions(
        version=version,
        polynomial=crc.polynomial,
        check_crc=reading.check_crc,
        encryption_key=reading.encryption_key,
        cluster_id=stored_cluster_id(store.server, crc) or DEFAULT_CLUSTER_ID,
        access=CurrentUser(),
        workers=workers,
    )
