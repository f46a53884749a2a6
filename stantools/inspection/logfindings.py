"""Findings of clients.dat and subs.dat, made from their tolerant fold."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

import numpy as np

from stantools.format.layout import RECORD_HEADER_SIZE, Stop
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding, Severity
from stantools.store.logscan import LogDamage, LogDamageKind
from stantools.store.sublog import STATUSES, SubsState, SubStatus

if TYPE_CHECKING:
    from stantools.store.clientlog import ClientsState

_CODES = {
    LogDamageKind.VERSION: "file-version",
    LogDamageKind.TORN: "log-torn",
    LogDamageKind.ZEROS: "log-zeros",
    LogDamageKind.PAYLOAD: "log-damaged",
    LogDamageKind.LENGTH: "log-damaged",
    LogDamageKind.TYPE: "log-damaged",
    LogDamageKind.CRC_FIELD: "log-damaged",
    LogDamageKind.UNDECODABLE: "log-damaged",
    LogDamageKind.GARBAGE: "log-damaged",
}


def log_findings(file: str, state: ClientsState | SubsState, channel: str | None = None) -> Iterator[Finding]:
    """Gives a finding for each damaged range of a log.

    Args:
        file: Path relative to the store's root.
        state: Its tolerant fold.
        channel: The channel of a subs.dat.
    """
    for damage in state.damages:
        code, text = _CODES[damage.kind], damage.detail
        if damage.stop == Stop.DANGLING and damage.length == RECORD_HEADER_SIZE:
            code = "log-dangling-header"
        elif _unknown_type(damage):
            code = "log-unknown-type"
        if damage.repaired:
            text += "; the record is proven and can be kept"
        yield finding(code, text, file=file, offset=damage.offset, length=damage.length, channel=channel)


def _unknown_type(damage: LogDamage) -> bool:
    return damage.kind == LogDamageKind.TYPE or (damage.kind == LogDamageKind.UNDECODABLE and "type" in damage.detail)


def subscription_findings(
    file: str, channel: str, state: SubsState, known_clients: Container[bytes], last_sequence: int
) -> Iterator[Finding]:
    """Gives the findings about subscriptions whose client is not there, or that are ahead of the messages.

    Args:
        file: The subs.dat, relative to the root.
        channel: The channel.
        state: Its tolerant fold.
        known_clients: Ids of the clients in clients.dat.
        last_sequence: Highest sequence of the channel that is there, damaged or not.
    """
    table = state.subscriptions
    statuses = table.statuses(known_clients)
    ahead = table.last_sent > np.uint64(max(last_sequence, 0))
    gone = np.isin(statuses, [STATUSES.index(SubStatus.GHOST), STATUSES.index(SubStatus.ORPHAN)])
    for row in np.flatnonzero(ahead | gone).tolist():
        subscription, status, number = table.at(row), STATUSES[statuses[row]], int(table.ids[row])
        client = os.fsdecode(subscription.state.client_id)
        if status == SubStatus.GHOST:
            text = (
                f"subscription {number} of client {client!r}, group {os.fsdecode(subscription.state.q_group)!r}, "
                f"last sent {subscription.state.last_sent}, {len(subscription.pending)} pending"
            )
            yield finding("ghost-durable-queue", text, file=file, channel=channel, seq=number)
        elif status == SubStatus.ORPHAN:
            text = f"subscription {number} of client {client!r}"
            yield finding("orphan-subscription", text, file=file, channel=channel, seq=number, severity=Severity.INFO)
        if subscription.state.last_sent > last_sequence and status != SubStatus.ORPHAN:
            text = f"subscription {number}: last sent {subscription.state.last_sent}, last message {last_sequence}"
            yield finding("subscription-ahead", text, file=file, channel=channel, seq=number)
