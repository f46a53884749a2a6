"""The page for the teams of the applications: their consumers and subjects after a migration, with programs."""

from __future__ import annotations

from itertools import groupby

from stantools.migration.code_samples import LANGUAGES, publisher_samples
from stantools.migration.handout import handout, samples_of, server_of
from stantools.migration.plan.migration_plan import MigrationPlan
from stantools.pages.html import render


def handout_page(plan: MigrationPlan) -> str:
    rows = handout(plan)
    readers = [row for row in rows if row.consumer]
    publishers = [row for row in rows if not row.consumer]
    return render(
        "handout.html",
        plan=plan,
        server=server_of(plan),
        applications=[(name, list(group)) for name, group in groupby(readers, key=lambda row: row.application)],
        publishers=publishers,
        languages=LANGUAGES,
        samples=lambda row: samples_of(plan, row),
        publishing=publisher_samples(server_of(plan), publishers[0].subject) if publishers else {},
    )
