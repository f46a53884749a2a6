"""What is said of a salvage, with stable names: its plan, what was written, and whether that is as it should be."""

from __future__ import annotations

from typing import Any

from stantools.recovery.salvage.apply import SalvageResult
from stantools.recovery.salvage.manifest import describe
from stantools.recovery.salvage.model import SalvagePlan


def report(plan: SalvagePlan, result: SalvageResult | None, check: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the account of one store.

    Args:
        plan: What was planned.
        result: What was written, if it was.
        check: See `NewStoreCheck.as_json`.
    """
    described = describe(plan, [])
    return {
        "source": str(plan.source),
        "out": str(result.path) if result else None,
        "manifest": str(result.manifest) if result else None,
        "written": result is not None,
        "summary": plan_summary(plan),
        "channels": described["channels"],
        "dropped": described["dropped"],
        "changes": plan.changes,
        "server": described["server"],
        "cluster_id": described["cluster_id"],
        "check": check,
    }


def plan_summary(plan: SalvagePlan) -> dict[str, Any]:
    """Returns the numbers of a plan with stable names, for reports."""
    return {
        "channels": len(plan.channels),
        "messages": plan.messages,
        "filled": sum(channel.filled.count() for channel in plan.channels),
        "subscriptions": sum(len(channel.subscriptions) for channel in plan.channels),
        "clients": len(plan.clients),
        "bytes": plan.bytes,
        "lost": plan.lost,
        "lossy": plan.lossy,
    }
