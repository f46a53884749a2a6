"""Check of a new store: it is verified, and a start is forecast; the results determine the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import text
from stantools.format.crc import IEEE
from stantools.inspection.ciphertext import find_ciphertext
from stantools.inspection.findings import Finding
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.inspection.forecast.server_options import DEFAULT_CLUSTER_ID
from stantools.inspection.verify import verify
from stantools.progress import Progress
from stantools.recovery.salvage.model import SalvagePlan, SalvageResult
from stantools.store.directory import Datastore, open_datastore
from stantools.store.limits import DEFAULT_MAX_BYTES, DEFAULT_MAX_MSGS, UNLIMITED, StoreLimits

#: Option with which a server (the original or ours) reads encrypted messages.
ENCRYPT = "-encrypt"


@dataclass(frozen=True)
class NewStoreStart:
    """The start of a server on a new store."""

    works: bool  #: it starts with all of the store
    error: str | None = None  #: reason why it does not
    #: Options that the server needs besides the directory; those with a suitable default are left out.
    options: tuple[str, ...] = ()
    #: Channels with payloads that may be encrypted: then it is unknown whether the server needs `-encrypt`.
    suspected: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewStoreCheck:
    """The check of a new store."""

    findings: Sequence[Finding]  #: findings of verify
    clean: bool  #: verdict of verify
    start: NewStoreStart  #: forecast of a start of the server

    @property
    def good(self) -> bool:
        """The store is in order."""
        return self.clean and self.start.works

    def as_json(self) -> dict[str, Any]:
        return {
            "clean": self.clean,
            "starts": self.start.works,
            "error": self.start.error,
            "start_options": list(self.start.options),
            "may_be_encrypted": list(self.start.suspected),
            "findings": [finding.as_json() for finding in self.findings if finding.severity.value != "info"],
        }


def check_new_store(
    plan: SalvagePlan, result: SalvageResult, *, key: bytes | None = None, progress: Progress | None = None
) -> NewStoreCheck:
    """Verifies a new store and forecasts its start.

    `key` is the server's encryption key, if known. `progress` is called with bytes.
    """
    for channel in plan.channels:
        channel.subscriptions.release()  # free the memory for the subscriptions read back
    store = open_datastore(result.path, plan.crc, key)
    verdict = verify(store, workers=plan.options.workers, progress=progress)
    cluster_id = text(plan.server.cluster_id)
    start = check_start(store, cluster_id, workers=plan.options.workers)
    return NewStoreCheck(verdict.findings, verdict.clean, start)


def check_start(store: Datastore, cluster_id: str, *, workers: int = 1) -> NewStoreStart:
    """Forecasts the start of a server on a new store, and determines the options that it needs.

    `workers` slices are read at the same time.
    """
    limits = StoreLimits(channel=UNLIMITED)
    server = ServerOptions(crc=store.crc, cluster_id=cluster_id, limits=limits, workers=workers)
    start = forecast(store, server, lookups=False)
    options = ["-cid", cluster_id] if cluster_id != DEFAULT_CLUSTER_ID else []
    if store.crc.polynomial != IEEE:
        options += ["-file_crc_poly", str(store.crc.polynomial)]
    # With the default limits, the server would remove the oldest messages of a channel.
    if any(channel.count > DEFAULT_MAX_MSGS for channel in start.channels.values()):
        options += ["-mm", "0"]
    if any(channel.bytes > DEFAULT_MAX_BYTES for channel in start.channels.values()):
        options += ["-mb", "0"]
    sealed = find_ciphertext(store)
    if sealed.opened:
        options.append(ENCRYPT)
    suspected = () if sealed.opened else (*sealed.suspected, *sealed.refused)
    return NewStoreStart(start.starts and start.recovered, start.error, tuple(options), suspected)


def exit_code(plan: SalvagePlan, check: NewStoreCheck | None) -> ExitCode:
    """Returns the exit code of a plan, and of the check of the new store; None if nothing was written."""
    if check is not None and not check.good:
        return ExitCode.FINDINGS
    if not plan.lossy:
        return ExitCode.CLEAN
    return ExitCode.FINDINGS if check is None else ExitCode.LOSS
