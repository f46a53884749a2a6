"""Is a new store as it should be? It is verified, and a start is forecast; what that means for whoever salvaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stantools.errors import ExitCode
from stantools.inspection.findings import Finding
from stantools.inspection.forecast import ServerOptions, forecast
from stantools.inspection.verify import verify
from stantools.progress import Progress
from stantools.recovery.salvage.apply import SalvageResult
from stantools.recovery.salvage.model import SalvagePlan
from stantools.recovery.salvage.report import checked
from stantools.store.directory import open_datastore


@dataclass(frozen=True)
class NewStoreCheck:
    """What was found about a new store.

    Attributes:
        findings: Of its verification.
        clean: Its verdict.
        starts: A server would start with all of it.
        error: Why not, if so.
    """

    findings: tuple[Finding, ...]
    clean: bool
    starts: bool
    error: str | None = None

    @property
    def good(self) -> bool:
        """The store is as it should be."""
        return self.clean and self.starts

    def as_json(self) -> dict[str, Any]:
        """Returns it for reports."""
        return checked(self.findings, clean=self.clean, starts=self.starts, error=self.error)


def check_new_store(plan: SalvagePlan, result: SalvageResult, *, progress: Progress | None = None) -> NewStoreCheck:
    """Verifies a new store and forecasts its start.

    Args:
        plan: What was to be written.
        result: What was written.
        progress: Told the number of bytes as they are read.

    Raises:
        StoreUnreadableError: It cannot be read.
    """
    for channel in plan.channels:
        channel.subscriptions.release()  # those that are read back need the room
    store = open_datastore(result.path)
    verdict = verify(store, plan.crc, workers=plan.options.workers, progress=progress)
    cluster_id = plan.server.cluster_id.decode("utf-8", "surrogateescape")
    options = ServerOptions(polynomial=plan.crc.polynomial, cluster_id=cluster_id, workers=plan.options.workers)
    start = forecast(store, options, lookups=False)
    return NewStoreCheck(tuple(verdict.findings), verdict.clean, start.starts and start.recovered, start.error)


def exit_code(plan: SalvagePlan, check: NewStoreCheck | None) -> ExitCode:
    """Returns the exit code that says what became of a plan.

    Args:
        plan: The plan.
        check: What was found about the new store; None where nothing was written.
    """
    if check is not None and not check.good:
        return ExitCode.FINDINGS
    if not plan.lossy:
        return ExitCode.CLEAN
    return ExitCode.FINDINGS if check is None else ExitCode.LOSS
