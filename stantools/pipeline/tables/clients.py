"""The table of clients: those that clients.dat folds to, and those that only own subscriptions.

As `stantools clients` shows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stantools.errors import StoreUnreadableError
from stantools.inspection.subscribers import load_subs
from stantools.pipeline.tables.model import Mode
from stantools.pipeline.tables.parts import LocalPart, Row, text
from stantools.store.directory import SUBS_FILE

_REMEDY = "use mode PERMISSIVE to get what is intact in it; `stantools verify` says what is not"


def rows(here: LocalPart) -> Iterator[Row]:
    """Gives the rows of one store.

    Raises:
        StoreUnreadableError: The store cannot be listed; or with mode FAILFAST, clients.dat is damaged.
    """
    clients = here.clients.recovered(here.root, here.crc, here.options.check_crc)
    if clients.problems and here.options.mode is Mode.FAILFAST:
        raise StoreUnreadableError(f"{here.part.store.root}/clients.dat: {clients.problems[0]}", _REMEDY)
    owned, pending = _subscriptions(here)
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
            }


def _subscriptions(here: LocalPart) -> tuple[Counter[bytes], Counter[bytes]]:
    """Counts the subscriptions and the unacknowledged messages of each client."""
    owned: Counter[bytes] = Counter()
    pending: Counter[bytes] = Counter()
    for directory in here.directories():
        path = directory / SUBS_FILE
        if not path.is_file():
            continue
        subs = load_subs(path, here.crc, check_crc=here.options.check_crc)
        for each in subs.state.subscriptions.values():
            owned[each.state.client_id] += 1
            pending[each.state.client_id] += len(each.pending)
    return owned, pending
