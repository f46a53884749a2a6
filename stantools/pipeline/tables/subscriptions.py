"""The table of subscriptions: one row for each that a channel's subs.dat folds to, as `stantools subs` shows them.

A damaged file makes a row as well, so that nobody takes what is intact in it for all there was.
"""

from __future__ import annotations

from collections.abc import Iterator

from stantools.inspection.slicesummary import channel_ends
from stantools.inspection.subscribers import Subscriber, Subscribers, load_subs
from stantools.pipeline.tables.model import Unreadable
from stantools.pipeline.tables.parts import LocalPart, Row, int64, text
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE
from stantools.store.sublog import SubStatus


def rows(here: LocalPart) -> Iterator[Row | Unreadable]:
    """Gives the rows of one channel, or says what is wrong with the store's clients.dat.

    Where subs.dat is damaged, they come from what is intact in it, and that is said.

    Raises:
        StoreUnreadableError: The channel cannot be listed.
    """
    crc = here.crc
    clients = here.clients.recovered(here.root, crc)
    if here.part.channel is None:
        yield from here.damaged(CLIENTS_FILE, clients.problems)
        return
    files = here.channel()
    subs = load_subs(files.subs or files.path / SUBS_FILE, crc)
    yield from here.damaged(f"{here.part.channel}/{SUBS_FILE}", subs.problems, here.part.channel)
    if not subs.state.subscriptions:
        return
    first, last = channel_ends(files.slices, files.raw_name, crc)
    base = {"store": here.store, "channel": text(here.part.channel)}
    for each in Subscribers(subs.state, clients.state.clients, first, last):
        yield base | _row(each)


def _row(each: Subscriber) -> Row:
    state = each.state
    return {
        "id": int64(state.id),
        "client_id": text(state.client_id),
        "inbox": text(state.inbox),
        "ack_inbox": text(state.ack_inbox),
        "durable_name": text(state.durable_name),
        "queue_group": text(state.q_group),
        "is_durable": state.is_durable,
        "is_closed": state.is_closed,
        "max_in_flight": state.max_in_flight,
        "ack_wait_in_secs": state.ack_wait_in_secs,
        "last_sent": int64(state.last_sent),
        "pending": [int64(sequence) for sequence in each.pending],
        "pending_count": len(each.pending),
        "lag": int64(each.lag),
        "status": each.status.value,
        "ghost": each.status is SubStatus.GHOST,
    }
