"""The queries that every kind of source answers: a store by itself, or a clustered node with its Raft log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stantools.inspection.findings import Finding
from stantools.progress import Progress
from stantools.sources.source import Source
from stantools.store.limits import StoreLimits

# Each function loads what it needs: `info` of a store needs neither the scan nor the reader of Raft logs.
if TYPE_CHECKING:
    from stantools.inspection.node import NodeReport
    from stantools.inspection.overview import Overview
    from stantools.inspection.survey import ChannelSurvey
    from stantools.inspection.verify import Verdict


def source_overview(
    source: Source,
    *,
    patterns: Sequence[str] = (),
    limits: StoreLimits | None = None,
    free_pages: bool = False,
    workers: int = 2,
    progress: Progress | None = None,
) -> tuple[Overview, NodeReport | None]:
    """Reads a source without its messages; a node has a report of its own.

    The options are those of `overview` and `node_overview`.
    """
    report: NodeReport | None = None
    if source.node:
        from stantools.inspection.node import node_overview

        report, result = node_overview(
            source.node, source.read_options, patterns=patterns, limits=limits, free_pages=free_pages
        )
    else:
        from stantools.inspection.overview import overview

        result = overview(source.store(), patterns=patterns, limits=limits, workers=workers, progress=progress)
    result.problems += source.flaws
    return result, report


def verify_source(
    source: Source,
    *,
    patterns: Sequence[str] = (),
    workers: int = 2,
    progress: Progress | None = None,
    on_finding: Callable[[Finding], object] | None = None,
    on_survey: Callable[[ChannelSurvey], object] | None = None,
) -> Verdict:
    """Scans a source completely; the options are those of `verify`."""
    from stantools.inspection.catalogue import finding

    flaws = [finding("archive-incomplete", text) for text in source.flaws]
    if on_finding:
        for flaw in flaws:
            on_finding(flaw)
    if source.node:
        from stantools.inspection.node import verify_node

        verdict = verify_node(
            source.node, source.read_options, patterns=patterns, workers=workers, on_finding=on_finding
        )
    else:
        from stantools.inspection.verify import verify

        source.store().chosen(patterns)
        verdict = verify(
            source.store(),
            patterns=patterns,
            workers=workers,
            progress=progress,
            on_finding=on_finding,
            on_survey=on_survey,
        )
    verdict.findings[:0] = flaws
    return verdict
