"""The reports of a comparison: of two stores, of two JetStream directories, of a store and a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stantools.errors import ExitCode
from stantools.escaping import escape
from stantools.inspection.findings import Finding, Severity
from stantools.inspection.report import DIFFERENCE_COLUMNS, Report, finding_records
from stantools.migration.proof.stores import StoresDifference, in_both
from stantools.migration.proof.stream_proof import Proof
from stantools.notation import counted, format_size


def stores_comparison_report(found: StoresDifference) -> Report:
    facts = {"stream": None, "channels": found.channels, "messages": found.messages, "damaged": list(found.damaged)}
    return _comparison_report(found.findings, facts, in_both(found.messages, found.channels))


def directories_comparison_report(found: StoresDifference) -> Report:
    facts = {"stream": None, "streams": found.channels, "messages": found.messages, "damaged": list(found.damaged)}
    text = f"{counted(found.messages, 'message')} in {counted(found.channels, 'stream')} are in both directories"
    return _comparison_report(found.findings, facts, text)


def stream_comparison_report(proof: Proof, stream: str, channels: Sequence[str]) -> Report:
    facts = {
        "stream": stream,
        "channels": channels,
        "messages": proof.messages,
        "bytes": proof.bytes,
        "seconds": round(proof.seconds, 3),
    }
    rate = f"{proof.messages / proof.seconds:,.0f} a second" if proof.seconds else "no time"
    text = (
        f"{counted(proof.messages, 'message')} ({format_size(proof.bytes)}) of channel "
        f"{', '.join(map(escape, channels))} {'was' if proof.messages == 1 else 'were'} compared with stream "
        f"{escape(stream)}, {rate}"
    )
    return _comparison_report(proof.findings, facts, text)


def _comparison_report(findings: Sequence[Finding], facts: Mapping[str, Any], text: str) -> Report:
    report = Report(findings=findings, records=finding_records(findings, DIFFERENCE_COLUMNS))
    report.document = lambda: {**facts, "findings": [each.as_json() for each in findings]}
    if any(each.severity is not Severity.INFO for each in findings):
        report.code, report.role = ExitCode.FINDINGS, "bad"
        report.verdict = f"different: {counted(len(findings), 'finding')}; {text}"
    else:
        report.verdict, report.role = f"no difference: {text}", "good"
    return report
