"""What the server recovers of clients.dat and subs.dat (filestore.md sections 4 and 7.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from stantools.format.crc import Crc
from stantools.format.envelope import FILE_HEADER_BYTES, check_file_version
from stantools.format.layout import FILE_HEADER_SIZE, Stop
from stantools.format.quoting import quote
from stantools.inspection.forecast import report
from stantools.inspection.forecast.changes import Change, Cut, Write
from stantools.inspection.forecast.slices import Recovery
from stantools.store.clientlog import ClientsState, read_clients
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE, ChannelFiles
from stantools.store.logscan import LogEnd
from stantools.store.mapping import Buffer, mapped
from stantools.store.sublog import SubsState, read_subs


class _State(Protocol):
    end: LogEnd | None


_S = TypeVar("_S", bound=_State)
_C = TypeVar("_C", bound=_State, covariant=True)


@dataclass
class LogOutcome(Generic[_S]):
    """What the recovery of one log leads to.

    Attributes:
        state: What it adds up to.
        size: Its size afterwards.
        log: Lines that are logged.
        changes: What happens to the file.
        error: Why the server does not start, with the words around it; "" if it goes on.
    """

    state: _S
    size: int = FILE_HEADER_SIZE
    log: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    error: str = ""


def open_clients(recovery: Recovery, path: Path | None) -> tuple[str, list[Change]]:
    """Forecasts the opening of clients.dat, which comes before anything is read.

    Returns:
        Why it fails, or "", and what happens to the file.
    """
    if not (error := recovery.denied(CLIENTS_FILE, path)):
        if path is None:
            return "", [_created(CLIENTS_FILE)]
        with mapped(path) as buffer:
            error = check_file_version(buffer) or ""
    # What cannot be opened is named without its path.
    return (f"unable to recover client file {quote(CLIENTS_FILE)}: {error}" if error else ""), []


def recover_clients(recovery: Recovery, path: Path | None) -> LogOutcome[ClientsState]:
    """Forecasts the recovery of clients.dat."""
    outcome = _recover(recovery, path, CLIENTS_FILE, read_clients, ClientsState())
    if outcome.error:
        name = quote(recovery.full_name(CLIENTS_FILE))
        outcome.error = f"unable to recover client file {name}: {outcome.error}"
    return outcome


def recover_subs(recovery: Recovery, channel: str, files: ChannelFiles) -> LogOutcome[SubsState]:
    """Forecasts the recovery of a channel's subs.dat."""
    outcome = _recover(recovery, files.subs, f"{channel}/{SUBS_FILE}", read_subs, SubsState())
    if outcome.error:
        outcome.error = f"unable to recover subscription store for [{channel}]: {outcome.error}"
    return outcome


class _Read(Protocol[_C]):
    def __call__(self, buffer: Buffer, crc: Crc, *, check_crc: bool) -> _C: ...


def _recover(recovery: Recovery, path: Path | None, file: str, read: _Read[_S], empty: _S) -> LogOutcome[_S]:
    outcome = LogOutcome(empty)
    if error := recovery.denied(file, path):
        outcome.error = error
        return outcome
    if path is None:
        outcome.changes.append(_created(file))
        outcome.state.end = LogEnd(FILE_HEADER_SIZE, Stop.END, "", FILE_HEADER_SIZE)
        return outcome
    with mapped(path) as buffer:
        if buffer == FILE_HEADER_BYTES:
            outcome.state.end = LogEnd(FILE_HEADER_SIZE, Stop.END, "", FILE_HEADER_SIZE)
            return outcome
        if path not in recovery.folds:
            read_now = read(buffer, recovery.crc, check_crc=recovery.options.check_crc)
            recovery.folds[path] = cast(ClientsState | SubsState, read_now)
        outcome.state = cast(_S, recovery.folds[path])
        end = outcome.state.end
        assert end is not None
        outcome.size = end.size_after(truncate=recovery.truncate)
        name = recovery.full_name(file)
        if end.torn:
            outcome.log = report.torn_record(
                buffer, end.offset, file=name, store=recovery.store_name, typed=True, truncate=recovery.truncate
            )
            if recovery.truncate:
                outcome.log += report.repaired(name, end.offset)
        elif end.stop is Stop.BAD_CRC:
            outcome.log = report.corrupted_record(buffer, end.offset, file=name, reason=end.error, typed=True)
    if not (end.torn and recovery.truncate):
        outcome.error = end.error
    if outcome.size != end.file_size:
        outcome.changes.append(Change(file, end.file_size, outcome.size, Cut()))
    return outcome


def _created(file: str) -> Change:
    return Change(file, None, FILE_HEADER_SIZE, Write(FILE_HEADER_BYTES))
