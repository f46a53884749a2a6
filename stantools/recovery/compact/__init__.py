"""`compact`: the same store without dead records.

plan (`plan_compaction`: reads everything, changes nothing) → apply (`apply_compaction`: writes a new directory, or one
that takes the old one's place) → verify (part of applying: nothing appears that was not read back).

    clients.dat, subs.dat   only what is alive: filestore.md section 8
    messages                without what limits have removed, in slices as the limits of slices want them, with new
                            indexes: filestore.md sections 5.1 and 5.4

What the server makes of the store stays the same, except that limits that are raised later bring nothing back.
"""

from stantools.recovery.compact.apply import CompactionResult, apply_compaction, compact_in_place
from stantools.recovery.compact.plan import ChannelPlan, CompactionPlan, plan_compaction
from stantools.recovery.options import CompactOptions
from stantools.store.atomic import finish_replacement

__all__ = [
    "ChannelPlan",
    "CompactOptions",
    "CompactionPlan",
    "CompactionResult",
    "apply_compaction",
    "compact_in_place",
    "finish_replacement",
    "plan_compaction",
]
