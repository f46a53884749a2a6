"""The verdict on a JetStream directory or on the nodes of a cluster: state, findings, starts, and the next step."""

from __future__ import annotations

from typing import Any, Final

from stantools.errors import ExitCode
from stantools.inspection.advice import Health
from stantools.inspection.findings import Severity
from stantools.inspection.report import NextStep, Report, ReportRemark, Role, findings_section
from stantools.inspection.stream_forecast.nodes_report import NodesForecasts, forecast_directories
from stantools.inspection.stream_forecast.start_report import StartForecasts, SurveyCache
from stantools.inspection.stream_verify import StreamsVerdict, verify_streams
from stantools.notation import counted
from stantools.progress import Phase
from stantools.sources.source import Source
from stantools.store.locks import StoreUse, find_uses

#: findings that a repair in place may mend
_MENDABLE: Final = frozenset(
    {
        *("js-meta-sum", "js-meta-missing", "js-meta-json", "js-cons-meta", "js-index-hash", "js-leftover"),
        *("js-foreign-file", "js-purge-under-way"),
    }
)
_REPAIR: Final = "`stantools repair STORE --dry-run` tells what can be mended in place without a risk"


def diagnose_streams(source: Source, phase: Phase) -> Report:
    """Reads all of a JetStream directory, predicts its starts, and judges."""
    with phase("forecast", source.data_size()) as shown:
        survey = SurveyCache(shown.advance)
        verified = verify_streams(source, on_finding=shown.found, survey_of=survey)
        starts = forecast_directories(source, None, survey)
    return doctor_report(starts, verified, [] if source.archived else find_uses(source.place, quiet=0))


def doctor_report(found: StartForecasts | NodesForecasts, verified: StreamsVerdict, uses: list[StoreUse]) -> Report:
    """Returns the verdict on a source: its state, the effects of a start, the damage, and the one safe step."""
    report, step = found.report(), found.next_step()
    intact, gone = found.counts()
    wrong = [each for each in verified.findings if each.severity is not Severity.INFO]
    role: Role = "bad"
    if found.destroys:
        state = Health.IN_DANGER
    elif gone or not found.starts or any(each.severity is Severity.ERROR for each in wrong):
        state = Health.DAMAGED
    elif wrong or not found.harmless:
        state, role = Health.FLAWED, "warn"
    else:
        state, role = Health.HEALTHY, "good"
    text, _ = report.lead[0]
    report.lead[0] = (f"{found.source.path}: {state.value}: {text}", role)
    report.facts.append(("messages", f"{counted(intact, 'message')} intact, {gone} missing before"))
    report.warnings += [
        ReportRemark("warning", f"{each.detail}: stop the server before you change anything", "warn") for each in uses
    ]
    if section := findings_section(wrong):
        report.sections.append(section)
    if {each.code for each in wrong} & _MENDABLE and isinstance(found, StartForecasts) and not found.source.archived:
        report.next.append(NextStep(_REPAIR))
    report.code = ExitCode.CLEAN if state is Health.HEALTHY else ExitCode.FINDINGS
    document = report.document

    def as_json() -> dict[str, Any]:
        return {
            **document(),
            "state": state.value,
            "verdict": text,
            "intact": intact,
            "gone": gone,
            "findings": verified.severity_counts(),
            "in_use": [each.detail for each in uses],
            "next": {"text": step.text, "commands": list(step.commands)},
        }

    report.document = as_json
    return report
