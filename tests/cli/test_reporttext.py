"""Reports as text: the order of their parts, shortened lists, and commands."""

from __future__ import annotations

import pytest

from stantools.cli.reporttext import print_report
from stantools.inspection.report import NextStep, Report, ReportRemark, ReportSection, ReportTable, columns


def printed(capsys: pytest.CaptureFixture[str], report: Report) -> list[str]:
    print_report(report)
    return capsys.readouterr().out.splitlines()


def table(count: int, limit: int | None = None, more: int = 0) -> ReportTable:
    return ReportTable(columns("n", numbers=("n",)), [(n,) for n in range(count)], limit, "row", ": see there", more)


def test_a_verdict_leads_or_concludes(capsys: pytest.CaptureFixture[str]) -> None:
    """In a report that leads with its verdict, sections follow; otherwise the verdict is below them."""
    report = Report(label="store", verdict="damaged", facts=[("messages", "3")], leads=True)
    report.sections = [ReportSection(verdict="one"), ReportSection(verdict="two", apart=False)]
    assert printed(capsys, report) == ["store: damaged", "messages: 3", "", "one", "two"]
    report.leads = False
    assert printed(capsys, report) == ["", "one", "two", "messages: 3", "store: damaged"]


def test_details_stand_below_their_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    section = ReportSection("start", "fails", apart=False)
    section.list_details((ReportRemark("log", str(n)) for n in range(5)), width=5, limit=2, noun="line", rest=": all")
    section.list_details([ReportRemark("", "as above")])
    section.tables.append(table(1))
    assert printed(capsys, Report(sections=[section])) == [
        "start: fails",
        "  log    0",
        "  log    1",
        "  log    … and 3 more lines: all",
        "  as above",
        "",
        "    n",
        "  ---",
        "    0",
    ]


def test_a_heading_precedes_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    section = ReportSection(heading="node\x1b1", tables=[table(1)], apart=False, indent=0)
    assert printed(capsys, Report(sections=[section])) == ["node\\x1b1", "", "  n", "---", "  0"]


@pytest.mark.parametrize(("limit", "more", "left"), [(None, 0, 0), (2, 0, 1), (None, 4, 4), (2, 4, 5), (0, 0, 0)])
def test_left_out_rows_are_counted(capsys: pytest.CaptureFixture[str], limit: int | None, more: int, left: int) -> None:
    lines = printed(capsys, Report(sections=[ReportSection(tables=[table(3, limit, more)], apart=False)]))
    assert [line for line in lines if "…" in line] == (
        [f"  … and {left} more row{'s' * (left > 1)}: see there"] if left else []
    )
    assert len(lines) - bool(left) == (2 + (3 if limit is None else limit) if limit != 0 else 0)


def test_placeholders_of_a_template_stay(run, golden) -> None:
    """A command that names several nodes cannot be filled with one store."""
    nodes = golden.parent / "clusters" / "lost_store_snapshot"
    out = run("forecast", nodes / "nodes" if (nodes / "nodes").is_dir() else nodes).out
    assert "stantools merge NODE... --out NEW" in out


def test_steps_end_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(sections=[ReportSection(next=[NextStep("repair it", ["stantools salvage x"])], apart=False)])
    assert printed(capsys, report) == ["next: repair it", "  stantools salvage x"]
