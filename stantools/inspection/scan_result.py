"""The result of a full scan: findings, and what each kind of source adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from stantools.inspection.findings import Finding, Severity
from stantools.inspection.report import FINDING_COLUMNS, NextStep, ReportTable


class LogVerdict(Protocol):
    """Of a channel or stream: its intact messages, and their bytes."""

    @property
    def intact_messages(self) -> int: ...
    @property
    def intact_bytes(self) -> int: ...


@dataclass
class ScanResult:
    #: columns of findings in csv and ndjson
    finding_columns: ClassVar[Sequence[str]] = FINDING_COLUMNS

    findings: list[Finding] = field(default_factory=list)  #: the store as a whole first, then part by part
    bytes_scanned: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """There is no finding above severity info."""
        return all(each.severity == Severity.INFO for each in self.findings)

    def add_findings(self, findings: Iterable[Finding], on_finding: Callable[[Finding], object] | None = None) -> None:
        """Adds findings; `on_finding` is called with each."""
        for each in findings:
            self.findings.append(each)
            if on_finding:
                on_finding(each)

    def next_step(self) -> NextStep:
        """Returns what helps with a store that is not clean."""
        return NextStep("`stantools forecast STORE` shows the server's behaviour; nothing was changed")

    def severity_counts(self) -> dict[str, int]:
        """Returns the number of findings of each severity, the worst first."""
        return {severity.value: sum(each.severity is severity for each in self.findings) for severity in Severity}

    @property
    def logs(self) -> Sequence[LogVerdict]:
        """The channels or streams."""
        raise NotImplementedError

    def table(self) -> ReportTable:
        """Returns a row for each channel or stream."""
        raise NotImplementedError

    def messages_sentence(self) -> str:
        """Says how many messages are intact, and how many are not."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def common_json(self) -> dict[str, Any]:
        return {"clean": self.clean, "findings": [each.as_json() for each in self.findings]}

    def effort_json(self) -> dict[str, Any]:
        return {"bytes_scanned": self.bytes_scanned, "seconds": round(self.seconds, 6)}
