"""The report of a merge: that of a salvage, with the nodes."""

from __future__ import annotations

from typing import Any, cast

from stantools.inspection.report import Report, ReportTable, columns
from stantools.recovery.merge.model import MergePlan
from stantools.recovery.salvage import manifest
from stantools.recovery.salvage.check import NewStoreCheck
from stantools.recovery.salvage.model import SalvagePlan, SalvageResult
from stantools.recovery.salvage.salvage_report import salvage_report

_NUMBERS = ("term", "last entry", "snapshot", "messages")
_COLUMNS = columns("node", *_NUMBERS, "", numbers=_NUMBERS)


def merge_report(
    plan: SalvagePlan, result: SalvageResult | None = None, check: NewStoreCheck | None = None, *, key: str = ""
) -> Report:
    report = salvage_report(plan, result, check, _document, key=key)
    merged = cast("MergePlan", plan)
    rows = [
        (
            each.name,
            each.report.last_term if each.report else None,
            each.report.last if each.report else None,
            each.report.base.index if each.report and each.report.base else None,
            each.messages if each.files.data else None,
            "its log counts" if each.name == merged.log.winner else "behind" if each.stale else None,
        )
        for each in merged.nodes
    ]
    report.tables.insert(0, ReportTable(_COLUMNS, rows))
    return report


def _document(planned: SalvagePlan, result: SalvageResult | None, check: dict[str, Any] | None) -> dict[str, Any]:
    plan = cast("MergePlan", planned)
    document = manifest.report(plan, result, check)
    return {
        **document,
        **plan.account(),
        "channels": [plan.channel_json(each) for each in plan.channels],
        "clients": len(plan.clients),
        "subscriptions": document["summary"]["subscriptions"],
    }
