"""`info` of several sources: the overview of each, as if it were alone, in tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from stantools.inspection.source_queries import source_overview
from stantools.inspection.stream_overview import stream_overviews
from stantools.pipeline.jobs.stores import JobResult, map_stores
from stantools.pipeline.tables.discovery import FoundStore
from stantools.pipeline.tables.model import FailedRead
from stantools.pipeline.tables.table_options import TableOptions
from stantools.sources.source import Source
from stantools.store.limits import StoreLimits
from stantools.work import Work


@dataclass
class StoreOverview:
    root: str
    document: dict[str, Any]  #: as of `info` of this store alone
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

    def as_json(self) -> dict[str, Any]:
        return {"store": self.root, **self.document, "clean": self.clean}


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
    if source.holds_streams:
        return _of_streams(source, options.channels)
    result, node = source_overview(source, patterns=options.channels, limits=limits, free_pages=True)
    document = result.as_json() | ({"node": node.as_json()} if node else {})
    findings = [each for each in node.findings if each.severity != "info"] if node else []
    told = chain(result.all_problems(), (f"{each.file or each.channel}: {each.detail}" for each in findings))
    return StoreOverview(store.shown, document, list(told))


def _of_streams(source: Source, patterns: Sequence[str]) -> StoreOverview:
    streams = list(stream_overviews(source, patterns=patterns))
    document = {"kind": "jetstream", "path": str(source.path), "streams": [each.as_json() for each in streams]}
    problems = [f"{each.account}/{each.name}: {text}" for each in streams for text in each.problems]
    return StoreOverview(source.shown, document, problems + source.flaws)
