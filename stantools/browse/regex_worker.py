"""The worker process of `stantools.browse.search`.

It runs as a script, and imports only the standard library, so that it starts at once. Its argument is the process id
of its parent. It reads the pattern and then lists of messages, as pickles; it answers each list with a byte for each
message: 1 if the pattern is found in one of the message's texts, else 0.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys

#: Seconds between checks that the parent still runs.
_CHECK_INTERVAL = 1.0


def main() -> None:
    """Answers until the input ends."""
    parent = int(sys.argv[1])

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(1)

    # `re` lets signals through while it matches; without this, a match that never ends would outlive a killed parent.
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _CHECK_INTERVAL, _CHECK_INTERVAL)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    try:
        search = pickle.load(source).search
        while True:
            messages = pickle.load(source)
            target.write(bytes(any(search(text) for text in texts) for texts in messages))
            target.flush()
    except (EOFError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
