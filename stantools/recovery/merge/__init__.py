"""`merge`: the directories of a cluster's nodes as one standalone store.

plan (`plan_merge`: reads everything, changes nothing) → apply and verify as a salvage (`recovery.salvage`).
"""

from stantools.recovery.merge.merge_planner import plan_merge
from stantools.recovery.merge.model import MergePlan

__all__ = ["MergePlan", "plan_merge"]
