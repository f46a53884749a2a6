"""The plan file: what stands between planning and applying, for people to review and edit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from stantools.errors import StoreUnwritableError
from stantools.migration.plan.model import Plan
from stantools.migration.plan.planreader import parse_plan, read_plan
from stantools.migration.plan.planwriter import render_plan
from stantools.store.durable import replace_file

__all__ = ["parse_plan", "read_plan", "render_plan", "write_plan"]


def write_plan(path: Path, plan: Plan, go_on: Sequence[str] | None = None) -> None:
    """Writes a plan; the file has the old or the new content, never a part.

    Args:
        path: The file.
        plan: The plan.
        go_on: Commands that are the next steps, for the comment at the top; by default the usual ones.

    Raises:
        StoreUnwritableError: It cannot be written; an old file is as it was.
    """
    if not path.parent.is_dir():
        raise StoreUnwritableError(
            f"{path}: there is no directory {path.parent}", "create the directory that is to hold it first"
        )
    if go_on is None:
        name = shlex.quote(str(path))
        go_on = (f"stantools migrate apply {name}", f"stantools migrate verify {name}")
    replace_file(path, render_plan(plan, go_on).encode())
