"""Where messages, subscriptions and clients are kept: the interface, memory, files."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stantools.errors import UsageError

if TYPE_CHECKING:
    from broker.stores.interface import Store
    from broker.stores.options import EncryptionOptions, FileOptions
    from stantools.store.limits import StoreLimits


def open_store(
    kind: str,
    file: FileOptions | None = None,
    limits: StoreLimits | None = None,
    encryption: EncryptionOptions | None = None,
    *,
    cluster_id: bytes | None = None,
    wall: Callable[[], int] = time.time_ns,
) -> Store:
    """Returns a store; nothing is read or written before its `recover`.

    Args:
        kind: `MEMORY` or `FILE`, in any case.
        file: Options of a file store.
        limits: What it may hold.
        encryption: Encrypts the data of messages, if given.
        cluster_id: The server's. A file store that has channels and lost its `server.dat` gets a new identity with it.
        wall: Nanoseconds since the epoch, for limits of age.

    Raises:
        UsageError: There is no such kind, it has no directory, or the encryption cannot be; texts as the original's.
    """
    store: Store
    if kind.upper() == "MEMORY":
        from broker.stores.memory import MemoryStore

        store = MemoryStore(limits)
    elif kind.upper() == "FILE":
        if file is None:
            raise UsageError("for FILE stores, root directory must be specified")
        from broker.stores.file import FileStore

        store = FileStore(file, limits, wall=wall, cluster_id=cluster_id)
    else:
        raise UsageError(f"unsupported store type: {kind.upper()}")
    if encryption is not None:
        from broker.stores.encrypted import EncryptedStore

        store = EncryptedStore(store, encryption)
    return store
