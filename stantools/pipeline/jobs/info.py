"""`info` of several sources: the overview of each, as if it were alone, in tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stantools.inspection.source_queries import info_source
from stantools.pipeline.jobs.stores import JobResult, StoreDocument, map_stores
from stantools.pipeline.tables.discovery import FoundStore
from stantools.pipeline.tables.model import FailedRead
from stantools.pipeline.tables.table_options import TableOptions
from stantools.store.limits import StoreLimits
from stantools.work import Work


@dataclass
class StoreOverview(StoreDocument):
    problems: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.problems

    @property
    def logs(self) -> list[dict[str, Any]]:
        """Its channels or streams, with the names of a channel's values."""
        return [
            {
                "name": each["name"],
                "first_seq": each["first_seq"],
                "last_seq": each["last_seq"],
                "count": each["count"] if "count" in each else each["messages"],
                "bytes": each["bytes"],
                "slices": len(each["slices"] if "slices" in each else each["blocks"]),
                "subscriptions": len(each["subscriptions"] if "subscriptions" in each else each["consumers"]),
                "disk_bytes": each.get("disk_bytes", each["bytes"]),
            }
            for each in self.document.get("streams", self.document.get("channels", ()))
        ]


def run_info(
    work: Work,
    found: Sequence[FoundStore],
    failed: Sequence[FailedRead],
    options: TableOptions,
    limits: StoreLimits | None,
    *,
    progress: Callable[[int], object] | None = None,
) -> JobResult[StoreOverview]:
    """Reads stores without their messages; `progress` is called with the number of finished stores."""
    chosen = [each for each in found if not each.source or each.source.matches(options.channels)]
    return map_stores(work, partial(_overview, options=options, limits=limits), chosen, failed, progress=progress)


def _overview(store: FoundStore, options: TableOptions, limits: StoreLimits | None) -> StoreOverview:
    """In a task: the overview of one store."""
    source = store.opened_in_task(options)
    report = info_source(source, patterns=options.channels, limits=limits, streamed=False)
    return StoreOverview(store.shown, dict(report.document()), [each.text for each in report.warnings])
