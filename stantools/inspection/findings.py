"""Findings: what can be wrong with a store, with severity and a code from the catalogue.

Codes are stable: other programs match on them. `docs/findings.md` describes them; a test keeps both equal.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class Severity(enum.StrEnum):
    ERROR = "error"  #: data is damaged or lost, or the server would not start
    WARNING = "warning"  #: nothing is lost yet, but something differs from what a healthy server leaves
    INFO = "info"  #: worth knowing


@dataclass(frozen=True)
class Finding:
    """One problem and its place."""

    code: str  #: stable name from the catalogue
    severity: Severity
    file: str = ""  #: path relative to the store's root; "" for the store as a whole
    offset: int | None = None  #: first byte concerned
    length: int | None = None  #: number of bytes concerned
    channel: str | None = None
    seq: int | None = None  #: sequence or subscription id
    detail: str = ""  #: the found and the expected value
    remedy: str = ""  #: next step

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


#: members of a finding in a JetStream directory, as programs get it
STREAM_FINDING_FIELDS = (
    *("code", "severity", "file", "offset", "length", "account", "stream", "consumer", "seq", "detail", "remedy"),
)


@dataclass(frozen=True)
class StreamFinding(Finding):
    """A finding in a JetStream directory; `channel` is not used."""

    account: str | None = None
    stream: str | None = None
    consumer: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STREAM_FINDING_FIELDS}


#: Rank of each severity; 0 is the worst.
RANKS = {severity: rank for rank, severity in enumerate(Severity)}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings by severity, errors first, otherwise in their order."""
    return sorted(findings, key=lambda each: RANKS[each.severity])
