"""The table of clients: those that clients.dat folds to, and those that only own subscriptions.

As `stantools clients` shows them. A damaged file makes a row as well.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from stantools.inspection.subscribers import Subs, load_subs
from stantools.pipeline.tables.model import Unreadable
from stantools.pipeline.tables.parts import LocalPart, Row, text
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE


def rows(here: LocalPart) -> Iterator[Row | Unreadable]:
    """Gives the rows of one store. Where a file is damaged, they come from what is intact in it, and that is said.

    Raises:
        StoreUnreadableError: The store cannot be listed.
    """
    clients = here.clients.recovered(here.root, here.crc)
    yield from here.damaged(CLIENTS_FILE, clients.problems)
    owned: Counter[bytes] = Counter()
    pending: Counter[bytes] = Counter()
    for channel, subs in _subscriptions(here):
        yield from here.damaged(f"{channel}/{SUBS_FILE}", subs.problems, channel)
        for each in subs.state.subscriptions.values():
            owned[each.state.client_id] += 1
            pending[each.state.client_id] += len(each.pending)
    for name, info in clients.state.clients.items():
        yield {
            "store": here.store,
            "id": text(info.id),
            "hb_inbox": text(info.hb_inbox),
            "conn_id": info.conn_id,
            "protocol": info.protocol,
            "ping_interval": info.ping_interval,
            "ping_max_out": info.ping_max_out,
            "registered": True,
            "subscriptions": owned.pop(name, 0),
            "pending": pending[name],
            "status": "ok",
        }
    for name in sorted(owned):
        if name:
            yield {
                "store": here.store,
                "id": text(name),
                "hb_inbox": "",
                "conn_id": b"",
                "protocol": 0,
                "ping_interval": 0,
                "ping_max_out": 0,
                "registered": False,
                "subscriptions": owned[name],
                "pending": pending[name],
                "status": "ok",
            }


def _subscriptions(here: LocalPart) -> Iterator[tuple[str, Subs]]:
    for directory in here.directories():
        path = directory / SUBS_FILE
        if os.path.lexists(path) or not os.access(directory, os.X_OK):
            yield directory.name, load_subs(path, here.crc)
