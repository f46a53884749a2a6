"""Stores of messages, subscriptions and clients: the interface, in memory, in files, in streams of JetStream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from stantools.errors import UsageError

if TYPE_CHECKING:
    from broker.stores.interface import StateStore
    from broker.stores.jetstream.store import StreamBacking
    from broker.stores.store_options import EncryptionOptions, FileOptions
    from stantools.store.limits import StoreLimits


def open_store(
    kind: str,
    file: FileOptions | None = None,
    limits: StoreLimits | None = None,
    encryption: EncryptionOptions | None = None,
    *,
    cluster_id: bytes | None = None,
    wall: Callable[[], int] = time.time_ns,
    backing: StreamBacking | None = None,
) -> StateStore:
    """Returns a store; nothing is read or written before its `recover`. UsageErrors have the original's texts.

    `kind` is `MEMORY`, `FILE` or `JETSTREAM`, in any case. `file` has the options of a file store, or of the file
    copy of a JetStream store, which also needs a `backing`. A file store that has channels but lost its `server.dat`
    gets a new identity with `cluster_id`. `wall` returns nanoseconds since the epoch, for age limits.
    """
    store: StateStore
    if kind.upper() == "MEMORY":
        from broker.stores.memory import MemoryStore

        store = MemoryStore(limits)
    elif kind.upper() == "FILE":
        if file is None:
            raise UsageError("for FILE stores, root directory must be specified")
        from broker.stores.file import FileStore

        store = FileStore(file, limits, wall=wall, cluster_id=cluster_id)
    elif kind.upper() == "JETSTREAM":
        from broker.stores.file import FileStore
        from broker.stores.jetstream.store import JetStreamStore

        assert file is not None
        assert backing is not None
        # The streams are authoritative, not the files.
        options = replace(file, sync=False)
        store = JetStreamStore(
            backing,
            file.directory,
            lambda: FileStore(options, limits, wall=wall, cluster_id=cluster_id),
            limits,
        )
    else:
        raise UsageError(f"unsupported store type: {kind.upper()}")
    if encryption is not None:
        from broker.stores.encrypted import EncryptedStore

        store = cast("StateStore", EncryptedStore(store, encryption))
    return store
