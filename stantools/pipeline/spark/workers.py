"""Python workers that Spark uses for one task after the other: what one leaves behind the next has not to bear."""

from __future__ import annotations

import gc
import os
from pathlib import Path

#: Tasks that this process has begun.
_begun = 0
#: Memory of its own with which a process gives back what it does not use; less is not worth asking for it again.
_MUCH = 128 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_STATM = Path("/proc/self/statm")


def begin_task() -> None:
    """Makes a worker ready for a task of ours, to be called when the task begins. Outside of one nothing is done.

    What is loaded for good is spared from being looked through for garbage. Spark's daemon collects garbage after every
    task; with pyarrow and numpy loaded that takes some 50 ms, as long as it takes to read 200 MB of messages, and it
    finds nothing. So what the first task has loaded is taken out of it, by the second one: in between the daemon has
    collected what was garbage among it.

    Memory of Arrow's that a task before has used and freed is given back if it is much.
    """
    global _begun
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    _begun += 1
    if _begun == 2:
        gc.freeze()
    if _private_bytes() > _MUCH:
        import pyarrow as pa

        pa.default_memory_pool().release_unused()


def _private_bytes() -> int:
    """Returns the memory that belongs to this process alone, 0 where that is not told."""
    try:
        _, resident, shared = map(int, _STATM.read_text(encoding="ascii").split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE
