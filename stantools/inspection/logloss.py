"""What a damaged clients.dat or subs.dat costs: what the server would read of it, and what is intact in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stantools.format.crc import Crc
from stantools.inspection.records import FileKind
from stantools.store.clientlog import ClientsState, read_clients, salvage_clients
from stantools.store.mapping import mapped
from stantools.store.sublog import SubsState, read_subs, salvage_subs


@dataclass(frozen=True)
class LogLoss:
    """How far the server gets in a log, beside all that is in it.

    Attributes:
        offset: Where the server stops reading.
        size: Size of the file in bytes.
        error: Why it refuses to start with it; "" if it goes on.
        read: Clients or subscriptions that the server has then.
        read_records: Good records before `offset`.
        found: Clients or subscriptions that every intact record adds up to.
        found_records: Good records in the whole file.
        damages: Damaged ranges.
        repaired: Of them, records that prove themselves and can be kept.
    """

    offset: int
    size: int
    error: str
    read: int
    read_records: int
    found: int
    found_records: int
    damages: int
    repaired: int


def log_loss(path: Path, kind: FileKind, crc: Crc, *, check_crc: bool = True) -> LogLoss | None:
    """Compares what the server reads of a log with what is in it; None if it reads the whole file.

    Args:
        path: A subs.dat or clients.dat.
        kind: Which of them.
        crc: The store's CRC.
        check_crc: False passes over CRCs, as a server with its check turned off.

    Raises:
        StoreUnreadableError: The file is missing or must not be read.
    """
    strict: SubsState | ClientsState
    tolerant: SubsState | ClientsState
    with mapped(path) as buffer:
        if kind is FileKind.SUBS:
            strict = read_subs(buffer, crc, check_crc=check_crc)
        else:
            strict = read_clients(buffer, crc, check_crc=check_crc)
        end = strict.end
        if end is None or (not end.error and end.offset >= end.file_size):
            return None
        if kind is FileKind.SUBS:
            tolerant = salvage_subs(buffer, crc, check_crc=check_crc)
        else:
            tolerant = salvage_clients(buffer, crc, check_crc=check_crc)
    return LogLoss(
        offset=end.offset,
        size=end.file_size,
        error=end.error,
        read=_count(strict),
        read_records=strict.rows,
        found=_count(tolerant),
        found_records=tolerant.rows,
        damages=len(tolerant.damages),
        repaired=sum(each.repaired for each in tolerant.damages),
    )


def _count(state: SubsState | ClientsState) -> int:
    return len(state.subscriptions) if isinstance(state, SubsState) else len(state.clients)
