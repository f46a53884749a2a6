"""The directory of a node that starts its own NATS server: identity, copy, streams.

All files are below the one configured directory, which may be a volume of its own:

    node.json       the identity of the node
    copy/           the copy of the channels, a file store
    jetstream/      the streams, as a nats-server stores them
    nats-server/    configuration and log of the NATS server
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.log import STREAMING
from broker.stores.file.locks import descriptor_of, lock_directory, make_directory, unlock_directory
from broker.stores.interface import InUseError, OriginalStoreError, StorageError
from stantools.errors import StoreUnwritableError
from stantools.store.directory import CLIENTS_FILE, RAFT_LOG_FILE, SERVER_FILE
from stantools.store.durable import replace_file

_NODE: Final = "node.json"
#: Seconds that a start waits for the directory, because the NATS server of a killed node takes a moment to end, and
#: seconds between two checks.
_PATIENCE: Final = 15.0
_LOOK: Final = 0.1


class NodeDirectory:
    """A node's directory, created if missing, and locked while it is open. `raft`: NATS Streaming's Raft directory."""

    def __init__(self, path: Path, cluster_id: str, raft: Path) -> None:
        self.path = path
        self._cluster_id = cluster_id
        self._raft = raft
        self._lock: Path | None = None

    async def open(self, node_id: str, new_id: Callable[[], str]) -> str:
        """Locks the directory, and returns the id of the node.

        `node_id` is the configured id; if it is empty, the stored one counts, or one from `new_id`. Raises
        OriginalStoreError if the store of NATS Streaming, or of a broker with files, is there; StorageError if the
        directory is in use, belongs to another cluster, or cannot be written.
        """
        make_directory(self.path)
        self._lock = await self._locked()
        file = self.path / _NODE
        try:
            known = json.loads(file.read_text("utf-8")) if file.exists() else None
            if known is None:
                self._refuse_stores()
                known = {"node_id": node_id or new_id(), "cluster_id": self._cluster_id}
                replace_file(file, json.dumps(known).encode())
            stored, cluster_id = str(known["node_id"]), str(known["cluster_id"])
        except (OSError, ValueError, KeyError, TypeError, StoreUnwritableError) as problem:
            raise StorageError(f"{file} cannot be used: {problem}") from problem
        if cluster_id != self._cluster_id:
            raise StorageError(f'cluster ID "{self._cluster_id}" does not match recovered value of "{cluster_id}"')
        if node_id and node_id != stored:
            STREAMING.warning('node_id "%s" does not count: %s is the directory of node "%s"', node_id, file, stored)
        return stored

    async def _locked(self) -> Path:
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        logged = False
        while True:
            try:
                return lock_directory(self.path)
            except InUseError:
                if loop.time() > until:
                    raise
            if not logged:
                logged = True
                STREAMING.warning("%s is in use; waiting for the broker, or its NATS server, to end", self.path)
            await asyncio.sleep(_LOOK)

    def _refuse_stores(self) -> None:
        found = [self.path / name for name in (SERVER_FILE, CLIENTS_FILE)]
        found += [*self.path.glob("*/msgs.*.dat"), self._raft / self._cluster_id / RAFT_LOG_FILE]
        there = next((path for path in found if path.exists()), None)
        if there is not None:
            raise OriginalStoreError(
                f"{there} belongs to another server's store, which stays unchanged: nodes of the broker keep their "
                "messages in JetStream. Stop all servers of that store; then make one store of its nodes (stantools "
                "merge NODE NODE NODE --out NEW) and serve it with -st file, without -clustered; or migrate it to "
                "JetStream (stantools migrate NODE NODE NODE, with --for-broker for nodes like these). To start "
                "without it, configure another dir and log_path"
            )

    @property
    def lock(self) -> int:
        """The open descriptor of the lock. The NATS server inherits it, and so keeps others out."""
        assert self._lock is not None
        return descriptor_of(self._lock)

    def close(self) -> None:
        """Releases the directory, which becomes free when the NATS server has ended."""
        if self._lock is not None:
            unlock_directory(self._lock)
            self._lock = None
