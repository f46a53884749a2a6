"""One entry of the catalogue of findings, and the phrases that many entries share.

Texts are parts of sentences: they begin with a small letter and end without a full stop, and "it" in `server` is the
server.
"""

from __future__ import annotations

from dataclasses import dataclass

from stantools.inspection.findings import Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True)
class FindingCode:
    code: str
    severity: Severity
    meaning: str
    cause: str  #: usual cause
    server: str  #: behaviour of the real server
    remedy: str


CRASH = "a crash or power failure while the file was being written"
BITROT = "a bad disk, bad memory or a bad copy; a manual edit of the file"
SALVAGE = "run `stantools salvage STORE --out NEW`: it keeps every intact record"
CUT_OR_SALVAGE = (
    "`stantools truncate-bad-eof STORE --dry-run` shows what the server's own repair would cut; "
    "`stantools salvage STORE --out NEW` keeps every intact record"
)
FORECAST_OR_SALVAGE = (
    "`stantools forecast STORE` shows what a start would cut; `stantools salvage STORE --out NEW` keeps every intact "
    "record"
)
