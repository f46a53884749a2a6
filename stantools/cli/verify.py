"""`stantools verify`: a full scan with findings, of one store, or of many in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stantools.cli import console, pipeline
from stantools.cli.click_options import (
    channel_option,
    node_option,
    reading_options,
    store_argument,
    verb,
    workers_option,
)
from stantools.cli.output import show, table_text
from stantools.errors import ExitCode
from stantools.notation import counted, describe_ranges, format_size

if TYPE_CHECKING:
    from stantools.cli.pipeline import Cluster
    from stantools.inspection.findings import Finding
    from stantools.inspection.verify import Verdict
    from stantools.pipeline.jobs.stores import JobResult
    from stantools.pipeline.jobs.verify import StoreVerdict
    from stantools.pipeline.tables.table_options import TableOptions
    from stantools.store.read_options import ReadOptions

_COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}
#: Columns of a finding in csv and ndjson.
FINDING_COLUMNS = ("code", "severity", "file", "offset", "length", "channel", "seq", "detail", "remedy")
_MANY = 50


_FORMATS = ("table", "json", "ndjson", "csv")


@verb("verify", *_FORMATS)
@store_argument
@node_option
@channel_option
@workers_option
@reading_options()
def command(store: Path, channels: tuple[str, ...], workers: int, read_options: ReadOptions) -> int:
    """Read every byte of STORE, check every record, and say what is intact, damaged and missing.

    Nothing is changed. ndjson and csv list the findings; json adds the channels. `stantools explain CODE` explains a
    finding.

    Of a clustered node, the Raft log and the snapshots are checked as well.

    Exit code 0: clean. 1: findings other than informational ones.
    """
    from stantools.cli.opening import open_source
    from stantools.cli.progress import ByteProgress
    from stantools.inspection.source_queries import verify_source
    from stantools.sources.source import Capability

    source = open_source(store, read_options, Capability.SURVEY, channels=channels)
    with ByteProgress("verify", lambda: source.data_size(channels)) as shown:
        verdict = verify_source(
            source, patterns=channels, workers=workers, progress=shown.advance, on_finding=shown.found
        )
    return _print(verdict, node=source.node is not None)


@pipeline.job("verify", *_FORMATS)
@pipeline.stores_argument
@channel_option
@pipeline.reading_options()
@pipeline.cluster_options
def job(stores: tuple[str, ...], channels: tuple[str, ...], table_options: TableOptions, cluster: Cluster) -> int:
    """Read every byte of STORES, check every record, and say what is intact, damaged and missing.

    Each store has the result of `stantools verify`, in the same words and the same json; slices without a store are
    verified alone. Nothing is changed. ndjson and csv list the findings with their store; json adds the channels. An
    unreadable store is named, on stderr and under `failed`, and the others are verified.

    Exit code 0: clean. 1: findings other than informational ones, or an unreadable store.
    """
    from stantools.cli.progress import ByteProgress
    from stantools.pipeline.jobs.verify import plan_verify, run_verify

    stores, cluster = pipeline.unpacked(stores, channels, cluster)
    plan = plan_verify(table_options.of(stores, channels=channels))
    with ByteProgress("verify", plan.bytes) as shown, cluster.work("verify", plan.bytes, shown) as work:
        result = run_verify(work, plan, progress=shown.advance, on_finding=shown.found)
    rows = (row for each in result.stores for row in finding_rows(each.verdict.findings, prefix=[each.root]))
    show(result.as_json, lambda: _print_stores(result), ("store", *FINDING_COLUMNS), rows)
    return pipeline.ended(result)


def _print(verdict: Verdict, *, node: bool) -> int:
    show(verdict.as_json, lambda: print_verdict(verdict, node=node), FINDING_COLUMNS, finding_rows(verdict.findings))
    return ExitCode.CLEAN if verdict.clean else ExitCode.FINDINGS


def finding_rows(
    findings: Iterable[Finding], columns: Sequence[str] = FINDING_COLUMNS, *, prefix: Sequence[object] = ()
) -> Iterator[list[Any]]:
    """Yields findings as rows for csv and ndjson; every row begins with the values of `prefix`."""
    for finding in findings:
        values = finding.as_json()
        yield [*prefix, *(values[name] for name in columns)]


def print_verdict(verdict: Verdict, *, node: bool = False) -> None:
    """Prints the verdict on one store, or on a clustered node, for people."""
    from stantools.inspection.outcomes import OutcomeTotals

    rows = [
        (
            each.name,
            each.messages,
            each.bytes,
            describe_ranges(each.outcome.intact, 4),
            describe_ranges(each.outcome.archived, 4) if each.outcome.archived else None,
            describe_ranges(each.outcome.missing, 4) if each.outcome.missing else None,
            ", ".join(unknown.sequences for unknown in each.outcome.unknown) or None,
        )
        for each in verdict.channels
    ]
    if rows:
        headers = ("channel", "messages", "bytes", "intact", "archived", "missing before", "unknown")
        click.echo(table_text(headers, rows, right=("messages", "bytes")))
    print_findings(verdict.findings)
    if not node:
        click.echo(console.wrapped(f"messages: {OutcomeTotals.of(verdict.outcomes.values()).sentence()}", 2))
    click.echo(_conclusion(verdict))
    if not verdict.clean and not node:
        console.note("nothing was changed; for the server's behaviour: stantools forecast STORE")


def print_findings(findings: list[Finding]) -> None:
    """Prints findings for people: errors first, each remedy once."""
    if not findings:
        return
    from stantools.inspection.advice import remedies
    from stantools.inspection.findings import worst_first

    ranked = worst_first(findings)
    for finding in ranked[:_MANY]:
        place = console.escape(finding.file or finding.channel or "")
        if finding.offset is not None:
            place += f" at {finding.offset}"
            if finding.length is not None:
                place += f" ({counted(finding.length, 'byte')})"
        label = console.paint(finding.severity.value.ljust(7), _COLORS[finding.severity.value], err=False)
        click.echo(console.wrapped(f"{label}  {finding.code}  {place}".rstrip(), 9))
        click.echo(console.wrapped(f"         {console.escape_line(finding.detail)}", 9))
    console.left_out(len(ranked) - _MANY, tail=": see -o json")
    if helpful := remedies(ranked, Path(console.store())):
        click.echo("\nwhat helps:")
    for remedy in helpful:
        click.echo(console.wrapped(f"  - {console.escape_lines(console.filled(remedy))}", 4))
    click.echo()


def _counts(verdict: Verdict) -> dict[str, int]:
    return {severity: sum(f.severity.value == severity for f in verdict.findings) for severity in _COLORS}


def _conclusion(verdict: Verdict) -> str:
    counts = _counts(verdict)
    scanned = f"{format_size(verdict.bytes_scanned)} read in {verdict.seconds:.2f} s"
    if verdict.clean:
        notes = f", {counts['info']} for information" if counts["info"] else ""
        return f"{console.paint('clean', 'green', err=False)}: {scanned}{notes}"
    names = {"error": "error", "warning": "warning", "info": "note"}
    parts = [counted(count, names[severity]) for severity, count in counts.items() if count]
    return f"{console.paint('not clean', 'red', err=False)}: {', '.join(parts)}; {scanned}"


def _print_stores(result: JobResult[StoreVerdict]) -> None:
    if len(result.stores) == 1 and not result.failed:
        console.set_store(click.get_current_context(), result.stores[0].root)
        print_verdict(result.stores[0].verdict)
        return
    headers = ("store", "channels", "messages", "bytes", "errors", "warnings", "")
    click.echo(table_text(headers, map(_line, result.stores), right=headers[1:6]))
    unclean = [store for store in result.stores if not store.verdict.clean]
    for store in unclean[: pipeline.NAMED]:
        console.set_store(click.get_current_context(), store.root)
        pipeline.print_heading(store.root, "\n")
        print_findings(store.verdict.findings)
    console.left_out(len(unclean) - pipeline.NAMED, "store", tail=" with findings: see -o json\n")
    click.echo(_conclusion_of_stores(result, len(unclean)))


def _line(store: StoreVerdict) -> tuple[object, ...]:
    verdict, counts = store.verdict, _counts(store.verdict)
    return (
        store.root,
        len(verdict.channels),
        sum(each.messages for each in verdict.channels),
        sum(each.bytes for each in verdict.channels),
        counts["error"] or None,
        counts["warning"] or None,
        "clean" if store.clean else "not read" if verdict.clean else "not clean",
    )


def _conclusion_of_stores(result: JobResult[StoreVerdict], unclean: int) -> str:
    scanned = sum(store.verdict.bytes_scanned for store in result.stores)
    seconds = sum(store.verdict.seconds for store in result.stores)
    read = f"{format_size(scanned)} read in {seconds:.2f} s of work"
    stores = counted(len(result.stores), "store")
    if result.clean:
        return f"{console.paint('clean', 'green', err=False)}: {stores}, {read}"
    parts = [f"{unclean} of {stores} {'has' if unclean == 1 else 'have'} findings"] if unclean else []
    if result.failed:
        parts.append(f"{len(result.failed)} cannot be read")
    return f"{console.paint('not clean', 'red', err=False)}: {', '.join(parts)}; {read}"
