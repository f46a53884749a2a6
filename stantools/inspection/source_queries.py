"""The queries that kinds of sources answer: a store, a clustered node with its Raft log, streams of JetStream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stantools.errors import StantoolsError, StoreChangedError
from stantools.inspection.findings import Finding
from stantools.inspection.start_options import StartOptions
from stantools.progress import Phase, Progress
from stantools.sources.source import Source
from stantools.store.limits import StoreLimits
from stantools.store.locks import StoreUse, find_uses

# Each function loads what it needs: `info` of a store needs neither the scan nor the reader of Raft logs.
if TYPE_CHECKING:
    from stantools.inspection.advice import Diagnosis
    from stantools.inspection.forecast import Forecast, ServerOptions
    from stantools.inspection.forecast.sound_slices import SoundSlice
    from stantools.inspection.node import NodeReport
    from stantools.inspection.node_diagnosis import NodeDiagnosis
    from stantools.inspection.overview import Overview
    from stantools.inspection.report import Report
    from stantools.inspection.scan_result import ScanResult
    from stantools.inspection.survey import ChannelSurvey
    from stantools.inspection.verify import Verdict
    from stantools.store.directory import Datastore


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
    if source.sql:
        from stantools.inspection.sql_inspection import sql_overview

        result = sql_overview(source.sql, patterns, limits)
    elif source.node:
        from stantools.inspection.node import node_overview

        report, result = node_overview(
            source.node, source.read_options, patterns=patterns, limits=limits, free_pages=free_pages
        )
    else:
        from stantools.inspection.overview import overview

        result = overview(source.store(), patterns=patterns, limits=limits, workers=workers, progress=progress)
    result.problems += source.flaws
    return result, report


def info_source(
    source: Source,
    *,
    patterns: Sequence[str] = (),
    limits: StoreLimits | None = None,
    slices: bool = False,
    progress: Progress | None = None,
    streamed: bool = True,
) -> Report:
    """Reads a source of any kind without its messages; with `streamed`, the json of its report has iterators."""
    from stantools.inspection.overview_report import overview_report, streams_report

    if source.holds_streams:
        from stantools.inspection.stream_overview import stream_overviews

        return streams_report(source, list(stream_overviews(source, patterns=patterns, progress=progress)))
    view, node = source_overview(source, patterns=patterns, limits=limits, free_pages=True, progress=progress)
    return overview_report(view, node, limited=limits is not None, slices=slices, streamed=streamed)


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

    flaws = [finding("archive-incomplete", text) for text in source.flaws if not source.sql]
    if on_finding:
        for flaw in flaws:
            on_finding(flaw)
    if source.sql:
        from stantools.inspection.sql_inspection import verify_sql

        verdict = verify_sql(source.sql, patterns, on_finding)
    elif source.node:
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


def diagnose_source(
    source: Source,
    server: StartOptions,
    phase: Phase,
    on_survey: Callable[[ChannelSurvey], object] | None = None,
    *,
    needs_start: bool = False,
) -> Diagnosis:
    """Reads everything, predicts starts, and judges.

    Args:
        phase: Shows the progress.
        on_survey: Called with the scan of each channel, which is released afterwards.
        needs_start: Raise an error if a start cannot be predicted.
    """
    from stantools.inspection.advice import diagnose
    from stantools.inspection.ciphertext import find_ciphertext
    from stantools.inspection.forecast.sound_slices import sound_slices

    store, uses = source.store(), signs_of_use(source)
    sound: list[SoundSlice] = []

    def take(survey: ChannelSurvey) -> None:
        sound.extend(sound_slices(survey))
        if on_survey:
            on_survey(survey)

    with phase("verify", source.data_size()) as shown:
        verified = verify_source(
            source, workers=server.workers, progress=shown.advance, on_finding=shown.found, on_survey=take
        )
    options = server.server(store)
    starts: list[tuple[Forecast, Forecast]] = []
    start_problem: StantoolsError | None = None
    with phase("forecast", source.data_size()) as shown:
        try:
            starts = _forecasts(source, store, options, sound, shown.advance)
        except StoreChangedError:
            raise
        except StantoolsError as problem:
            if needs_start:
                raise
            start_problem = problem  # the rest is useful without it
    found = diagnose(source.path, verified, starts, uses, place=store.path)
    return replace(found, encryption=find_ciphertext(store), start_problem=start_problem)


def _forecasts(
    source: Source, store: Datastore, options: ServerOptions, sound: Sequence[SoundSlice], progress: Progress
) -> list[tuple[Forecast, Forecast]]:
    if source.sql:
        from stantools.inspection.sql_inspection import forecast_sql

        return forecast_sql(source.sql, options)
    from stantools.inspection.forecast import forecast_versions

    return forecast_versions(store, options, progress=progress, sound=sound)


def signs_of_use(source: Source) -> list[StoreUse]:
    """Returns signs that a program uses a source; nothing uses the private copy of an archive."""
    if source.sql:
        return [StoreUse("handle", detail)] if (detail := source.sql.reader.active_server()) else []
    return [] if source.archived else find_uses(source.place)


def diagnose_node_source(source: Source, workers: int, phase: Phase) -> NodeDiagnosis:
    """Reads all of a clustered node, and judges."""
    from stantools.inspection.node_diagnosis import diagnose_node

    with phase("verify", 0) as shown:
        verified = verify_source(source, workers=workers, on_finding=shown.found)
    view, report = source_overview(source)
    assert report
    return diagnose_node(source.path, report, view, verified)


def doctor_source(source: Source, server: StartOptions, phase: Phase) -> Report:
    """Reads all of a source of any kind, predicts starts, and reports the verdict."""
    if source.holds_streams:
        from stantools.inspection.stream_forecast.streams_doctor import diagnose_streams

        return diagnose_streams(source, phase)
    from stantools.inspection.diagnosis_report import diagnosis_report

    node = source.node is not None
    return diagnosis_report(
        diagnose_node_source(source, server.workers, phase) if node else diagnose_source(source, server, phase)
    )


def scan_source(
    source: Source,
    *,
    patterns: Sequence[str] = (),
    workers: int = 2,
    progress: Progress | None = None,
    on_finding: Callable[[Finding], object] | None = None,
) -> ScanResult:
    """Scans a source of any kind completely; the options are those of `verify`."""
    if source.holds_streams:
        from stantools.inspection.stream_verify import verify_streams

        return verify_streams(source, patterns=patterns, progress=progress, on_finding=on_finding)
    return verify_source(source, patterns=patterns, workers=workers, progress=progress, on_finding=on_finding)
