"""Python workers that Spark uses for one task after the other."""

from __future__ import annotations

import gc

#: Tasks that this process has begun.
_begun = 0


def begin_task() -> None:
    """Spares what is loaded for good from being looked through for garbage, to be called when a task begins.

    Spark's daemon collects garbage after every task. With pyarrow and numpy loaded that takes some 50 ms, as long as it
    takes to read 200 MB of messages, and it finds nothing. So what the first task has loaded is taken out of it, by the
    second one: in between the daemon has collected what was garbage among it. Outside of a task nothing is done.
    """
    global _begun
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    _begun += 1
    if _begun == 2:
        gc.freeze()
