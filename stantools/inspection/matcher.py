"""Matching a regular expression in a process of its own, where it is in nobody's way.

`re` holds the interpreter's lock while it looks at one text, and some patterns take years on a text of forty letters
(`(a+)+$`): in a thread they would stop everything, and nothing could stop them. A process can be waited for while
other threads go on, and be ended. `re` itself stays as it is: no pattern is refused.
"""

from __future__ import annotations

import os
import pickle
import re
import selectors
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stantools.errors import StantoolsError
from stantools.progress import Progress

#: How often it is looked whether the work was cancelled, in seconds.
_LOOK = 0.05
_CHILD = Path(__file__).with_name("matchchild.py")


class Matcher:
    """Tells which messages a pattern is found in. For one thread at a time.

    The process is started when it is needed first, and ended by `close`, with the last reference, or with the program.

    Args:
        pattern: What to look for.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Matcher] | None = None

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def matching(self, messages: Sequence[Sequence[bytes]], progress: Progress | None = None) -> list[bool]:
        """Tells for each message whether the pattern is found in one of its texts.

        Args:
            messages: The texts of each message.
            progress: Told 0 twenty times a second while it is waited; what it raises ends the process and goes on.

        Raises:
            StantoolsError: The process cannot be started, or has ended by itself.
        """
        try:
            return self._ask(messages, progress)
        except OSError as problem:
            self.close()
            text = f"the pattern cannot be matched: {problem.strerror or problem}"
            raise StantoolsError(text, "search again, or for a plain text") from problem
        except BaseException:
            self.close()
            raise

    def _ask(self, messages: Sequence[Sequence[bytes]], progress: Progress | None) -> list[bool]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        # The process takes in all of it before it begins, so that this does not wait for a match.
        pickle.dump(messages, process.stdin)
        process.stdin.flush()
        found = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while len(found) < len(messages):
                if not ready.select(_LOOK):
                    if progress:
                        progress(0)
                    continue
                part = os.read(process.stdout.fileno(), len(messages) - len(found))
                if not part:
                    raise OSError("its process has ended")
                found += part
        return [each != 0 for each in found]

    def _start(self) -> subprocess.Popen[bytes]:
        # Neither the environment nor installed packages concern it.
        command = [sys.executable, "-I", "-S", str(_CHILD), str(os.getpid())]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._process, self._end = process, weakref.finalize(self, _end, process)
        assert process.stdin is not None
        pickle.dump(self._pattern, process.stdin)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what it has not read is of no use any more
            if pipe is not None:
                pipe.close()
    process.wait()
