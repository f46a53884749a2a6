"""`compact`: the same store without dead records.

plan (`plan_compaction`: reads everything, changes nothing) → apply (`apply_compaction`: writes a new directory, or
replaces the old one) → verify (part of apply: the result appears only after it was read back).

clients.dat, subs.dat   only live records: filestore.md section 8 messages                without those that limits
have removed, in slices by the limits of slices, with new indexes:
                        filestore.md sections 5.1 and 5.4

A server recovers the same state from the result, except that limits that are raised later bring no messages back.
"""

from stantools.recovery.compact.apply import CompactionResult, apply_compaction, compact_in_place
from stantools.recovery.compact.plan import ChannelCompaction, CompactionPlan, plan_compaction
from stantools.recovery.recovery_options import CompactOptions
from stantools.store.atomic import finish_replacement

__all__ = [
    "ChannelCompaction",
    "CompactOptions",
    "CompactionPlan",
    "CompactionResult",
    "apply_compaction",
    "compact_in_place",
    "finish_replacement",
    "plan_compaction",
]
