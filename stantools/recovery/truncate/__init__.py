"""The server's own repair of files that end inside a record, to the byte, with a plan and a backup before it.

Facts: filestore.md section 7.8. A start with `-file_truncate_bad_eof` is forecast, and the planned changes of the
forecast are applied.

plan      the changes, the losses, and reasons against the repair backup    removed bytes, saved before anything
changes apply     applying a plan
"""

from __future__ import annotations

from stantools.inspection.forecast.losses import RemovedRecord
from stantools.recovery.truncate.apply import TruncationResult, apply_truncation
from stantools.recovery.truncate.plan import FileCut, TruncationPlan, plan_truncation

__all__ = [
    "FileCut",
    "RemovedRecord",
    "TruncationPlan",
    "TruncationResult",
    "apply_truncation",
    "plan_truncation",
]
