"""A JetStream directory in a salvage of several stores: its plan, its new directory, and its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stantools.pipeline.jobs.salvageplans import SalvageJob, StoreWork
from stantools.progress import Progress
from stantools.recovery.recovery_options import SalvageTarget
from stantools.recovery.streams.new_streams import StreamSalvageResult, write_backups, write_store
from stantools.recovery.streams.stream_plan import StreamSalvagePlan, plan_stream_salvage


@dataclass(frozen=True)
class StreamsSalvage:
    work: StoreWork
    job: SalvageJob

    @property
    def _out(self) -> Path | None:
        return None if self.job.out is None else self.job.out / self.work.name

    def plan(self, progress: Progress | None) -> StreamSalvagePlan:
        source = self.work.found.streams
        assert source
        return plan_stream_salvage(source, self.job.stream_options, self.job.options.patterns, progress)

    def write(self, plan: StreamSalvagePlan, progress: Progress | None) -> dict[str, Any]:
        """Writes what was planned, unless nothing is to be written; returns the report."""
        result: StreamSalvageResult | None = None
        if self._out is not None:
            write = write_backups if self.job.stream_options.to is SalvageTarget.BACKUP else write_store
            result = write(plan, self._out, progress)
        return self._report(plan, result)

    def _report(self, plan: StreamSalvagePlan, result: StreamSalvageResult | None) -> dict[str, Any]:
        """Returns the json of a salvage of this directory alone, with the members that reports of all stores have."""
        streams = plan.streams
        return {
            "kind": "jetstream",
            **plan.as_json(),
            "written": result is not None,
            "out": str(result.path) if result else None,
            "summary": {
                "channels": len(streams),
                "messages": plan.messages,
                "bytes": plan.bytes,
                "filled": 0,
                "subscriptions": sum(len(each.consumers) for each in streams),
                "missing_before": sum(each.lost.count() for each in streams),
                "lost_by_this_step": 0,
                "lossy": plan.lossy,
            },
            "dropped": [
                {
                    "fate": "lost",
                    "file": each.full_name,
                    "offset": None,
                    "length": 0,
                    "reason": "nowhere intact",
                    "sequences": each.lost.as_json(),
                    "loss": True,
                }
                for each in streams
                if each.lost
            ],
            "check": {"clean": result.good, "starts": True, "problems": result.problems} if result else None,
        }
