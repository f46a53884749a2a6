"""What can be wrong with a store: the finding, its severity, and the catalogue of codes.

Codes are stable: other programs match on them. `docs/findings.md` says the same in words; a test keeps both equal.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any


class Severity(enum.StrEnum):
    """How bad a finding is."""

    ERROR = "error"  #: data is damaged or lost, or the server would not start
    WARNING = "warning"  #: nothing is lost yet, but something is not as a healthy server leaves it
    INFO = "info"  #: worth knowing


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and where.

    Attributes:
        code: Stable name from the catalogue.
        severity: How bad it is.
        file: Path relative to the store's root; "" for the store as a whole.
        offset: First byte concerned, if there is one.
        length: Bytes concerned.
        channel: The channel, if it concerns one.
        seq: The sequence or subscription id concerned, if one.
        detail: What was found and what was expected.
        remedy: What to do next.
    """

    code: str
    severity: Severity
    file: str = ""
    offset: int | None = None
    length: int | None = None
    channel: str | None = None
    seq: int | None = None
    detail: str = ""
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the finding with the stable names of docs/reference/json.md."""
        return asdict(self)
