"""`merge`: the directories of a cluster's nodes as one standalone store.

plan (`plan_merge`: reads everything, changes nothing) → apply and verify as a salvage (`recovery.salvage`).
"""

from stantools.recovery.merge.model import MergePlan
from stantools.recovery.merge.plan import plan_merge

__all__ = ["MergePlan", "plan_merge"]
