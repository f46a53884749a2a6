"""Plans and results of migrations of many stores, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.output import print_json, table_text
from stantools.cli.pipeline import print_heading
from stantools.cli.reporttext import print_report, show
from stantools.notation import counted

if TYPE_CHECKING:
    from stantools.migration.plan.migration_plan import Remark
    from stantools.pipeline.jobs.migrate import MigrateResult
    from stantools.pipeline.jobs.migrateplans import PlannedStore

#: Stores whose plans and results are shown in full.
_STORES = 5


def show_plans(planned: Sequence[PlannedStore], problems: Sequence[Remark]) -> None:
    """Prints the plans of many stores, and notes, in table output only."""
    if console.output() != "table":
        return
    from stantools.inspection.report import Report
    from stantools.migration.migration_report import migration_plan_report, plan_remarks

    if len(planned) <= _STORES:
        for store in planned:
            if len(planned) > 1:
                print_heading(store.root)
            print_report(migration_plan_report(store.plan, ()))
    else:
        headers = ("store", "streams", "messages", "consumers", "lost")
        rows = []
        for store in planned:
            plan = store.plan
            lost = plan.lost or ("yes" if plan.lossy else None)
            rows.append((store.root, len(plan.streams), plan.messages, plan.consumers, lost))
        click.echo(table_text(headers, rows, right=headers[1:]))
    notes = Report()
    notes.list_remarks(plan_remarks(problems), "note")
    print_report(notes)


def show_stores(result: MigrateResult) -> None:
    """Prints the results of many stores."""
    from stantools.migration.migration_report import compared_text, migration_report, results_json

    if console.output() == "json":
        stores = [{"store": store.root, **results_json(store.plan, streams)} for store, streams in result.stores]
        clean = not result.failed and all(store["clean"] for store in stores)
        print_json({"clean": clean, "stores": stores, "failed": [each.as_json() for each in result.failed]})
    elif result.stores:
        bad = [each for each in result.stores if not all(stream.good for stream in each[1])]
        named = result.stores if len(result.stores) <= _STORES else bad[:_STORES]
        for store, streams in named:
            if len(result.stores) > 1:
                print_heading(store.root)
            report = migration_report(store.plan, streams)
            report.verdict = ""  # said of all stores
            show(report)
        console.left_out(len(bad) - len(named), "store", tail="; -o json lists all")
        good = [stream for _, streams in result.stores for stream in streams if stream.good]
        text = (
            f"{counted(len(good), 'stream')} of {counted(len(result.stores), 'store')} as planned{compared_text(good)}"
        )
        click.echo(console.paint(text, "green" if not bad else "yellow", err=False))
