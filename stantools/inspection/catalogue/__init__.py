"""The catalogue of finding codes: meaning, cause, behaviour of the real server, remedy.

Codes never change their meaning. `docs/findings.md` is generated from these tables (`make docs`), and `stantools
explain CODE` prints an entry of them.
"""

from __future__ import annotations

from typing import Any

from stantools.inspection.catalogue.difference_codes import DIFFERENCES
from stantools.inspection.catalogue.finding_code import FindingCode as FindingCode
from stantools.inspection.catalogue.message_codes import INDEXES, SEQUENCES, SLICES
from stantools.inspection.catalogue.node_codes import RAFT
from stantools.inspection.catalogue.sql_codes import SQL
from stantools.inspection.catalogue.store_codes import LOGS, STORE
from stantools.inspection.catalogue.stream_codes import STREAM_GROUPS
from stantools.inspection.findings import Finding, Severity, StreamFinding

#: Entries by heading of `docs/findings.md`.
GROUPS: dict[str, tuple[FindingCode, ...]] = {
    "The store as a whole": STORE,
    "Clients and subscriptions": LOGS,
    "Message slices": SLICES,
    "Indexes": INDEXES,
    "Sequences and subjects": SEQUENCES,
    "Raft logs and snapshots of clustered nodes": RAFT,
    "SQL stores": SQL,
    "Differences": DIFFERENCES,
    **STREAM_GROUPS,
}

CATALOGUE: dict[str, FindingCode] = {entry.code: entry for group in GROUPS.values() for entry in group}


def finding(code: str, detail: str, *, severity: Severity | None = None, **place: Any) -> Finding:
    """Makes a finding with the catalogue's remedy, and its severity unless one is given.

    `place` takes `file`, `offset`, `length`, `channel`, `seq` as in `Finding`; with `stream`, those of `StreamFinding`.
    """
    entry = CATALOGUE[code]
    kind = StreamFinding if "stream" in place else Finding
    return kind(code, severity or entry.severity, detail=detail, remedy=entry.remedy, **place)
