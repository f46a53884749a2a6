"""What became of a stream."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from stantools.errors import StantoolsError
from stantools.inspection.findings import Finding


class Outcome(enum.StrEnum):
    """What became of a stream."""

    MIGRATED = "migrated"
    REPLACED = "replaced"
    CONTINUED = "continued"  #: a killed run had published a part of it
    APPENDED = "appended"
    WRITTEN = "written"
    PLACED = "placed"
    COMPLETE = "complete before"
    COMPARED = "compared"
    FAILED = "failed"
    NOT_BEGUN = "not begun"  #: the server is full, or gone


@dataclass
class StreamResult:
    """What became of one stream.

    Attributes:
        stream: Its name.
        outcome: What was done.
        messages: Messages that it holds.
        bytes: Their size as the server counts.
        seconds: How long loading took, 0 if nothing was loaded.
        proven: Messages that were compared one by one.
        prove_seconds: How long that took.
        findings: Differences that were found.
        error: Why it failed.
    """

    stream: str
    outcome: Outcome = Outcome.FAILED
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    proven: int = 0
    prove_seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    error: StantoolsError | None = None

    @property
    def good(self) -> bool:
        """It is what it should be."""
        return self.error is None and not self.findings and self.outcome not in (Outcome.FAILED, Outcome.NOT_BEGUN)
