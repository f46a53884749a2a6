"""The verdict on one node of a cluster: its damage, whether it starts, and what the cluster loses if it leads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.escaping import beside
from stantools.inspection.advice import Advice, Health
from stantools.inspection.elections import ForgottenChannel, forgotten, start_error
from stantools.inspection.findings import Severity
from stantools.inspection.node import NodeReport
from stantools.inspection.overview import Overview
from stantools.inspection.verify import Verdict
from stantools.notation import counted, some_of


@dataclass(frozen=True)
class NodeDiagnosis:
    path: Path  #: the node, as the user wrote it
    verified: Verdict  #: result of verify
    error: str  #: reason why it does not start; "" if it starts
    forgets: tuple[ForgottenChannel, ...]  #: channels that the cluster loses when this node leads

    @property
    def _errors(self) -> int:
        return sum(each.severity is Severity.ERROR for each in self.verified.findings)

    @property
    def state(self) -> Health:
        if self.forgets and not self.error:
            return Health.IN_DANGER
        if self.error or self._errors:
            return Health.DAMAGED
        return Health.HEALTHY if self.verified.clean else Health.FLAWED

    @property
    def verdict(self) -> str:
        """One sentence without a full stop."""
        damage = counted(self._errors, "place", "is/are") + " damaged" if self._errors else "nothing is damaged"
        if self.error:
            return f"{damage}; the node does not start: {self.error}"
        if self.forgets:
            names = some_of([each.channel for each in self.forgets], 5)
            return f"{damage}; do not start the node: if it leads, the cluster forgets {names}"
        return f"{damage}; the node starts"

    @property
    def advice(self) -> Advice:
        if self.state in (Health.HEALTHY, Health.FLAWED):
            text = "See what a start of the cluster does: name the other nodes after this one"
            return Advice(text, ("stantools", "forecast", str(self.path)))
        text = "Copy the directories of all nodes, then make one store of them: name the other nodes after this one"
        return Advice(text, ("stantools", "merge", str(self.path), "--out", str(beside(self.path, "merged"))))

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "state": self.state.value,
            "verdict": self.verdict,
            "clean": self.state is Health.HEALTHY,
            "findings": self.verified.severity_counts(),
            "starts": not self.error,
            "error": self.error,
            "forgets": [vars(each) for each in self.forgets],
            "next": {"text": self.advice.text, "command": list(self.advice.command)},
        }


def diagnose_node(path: Path, report: NodeReport, view: Overview, verified: Verdict) -> NodeDiagnosis:
    """Judges a node; `report` and `view` are the results of `node_overview`."""
    return NodeDiagnosis(path, verified, start_error(report), forgotten(report, view))
