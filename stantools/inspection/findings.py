"""What can be wrong with a store: the finding, its severity, and the catalogue of codes.

Codes are stable: other programs match on them. `docs/findings.md` says the same in words; a test keeps both equal.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class Severity(enum.StrEnum):
    """How bad a finding is."""

    ERROR = "error"  #: data is damaged or lost, or the server would not start
    WARNING = "warning"  #: nothing is lost yet, but something is not as a healthy server leaves it
    INFO = "info"  #: worth knowing


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and where."""

    code: str  #: stable name from the catalogue
    severity: Severity  #: how bad it is
    file: str = ""  #: path relative to the store's root; "" for the store as a whole
    offset: int | None = None  #: first byte concerned, if there is one
    length: int | None = None  #: bytes concerned
    channel: str | None = None  #: the channel, if it concerns one
    seq: int | None = None  #: the sequence or subscription id concerned, if one
    detail: str = ""  #: what was found and what was expected
    remedy: str = ""  #: what to do next

    def as_json(self) -> dict[str, Any]:
        """Returns the finding with the stable names of docs/reference/json.md."""
        return asdict(self)


#: Severities from the worst one, 0, on.
RANKS = {severity: rank for rank, severity in enumerate(Severity)}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings by severity, errors first; those that are as bad stay in order."""
    return sorted(findings, key=lambda each: RANKS[each.severity])
