"""`salvage`: a new store with every intact record of a damaged one.

plan (`plan_salvage`: reads everything, changes nothing) → apply (`apply_salvage`: writes a new directory) → verify.
"""

from stantools.recovery.recovery_options import SalvageOptions
from stantools.recovery.salvage.apply import apply_salvage
from stantools.recovery.salvage.model import SalvagePlan, SalvageResult
from stantools.recovery.salvage.plan import plan_salvage

__all__ = ["SalvageOptions", "SalvagePlan", "SalvageResult", "apply_salvage", "plan_salvage"]
