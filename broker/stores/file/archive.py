"""The script that is given slices that limits removed (filestore.md section 5.5)."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from broker.log import STREAMING
from broker.stores.texts import quoted


class Archiver:
    """Runs the script, in the background.

    Args:
        script: Its path; empty for none.
    """

    def __init__(self, script: str) -> None:
        self._script = script
        self._running: set[threading.Thread] = set()

    def __bool__(self) -> bool:
        return bool(self._script)

    def run(self, channel: bytes, data: Path, index: Path) -> None:
        """Starts the script for one slice; its outcome is logged."""
        self._running = {each for each in self._running if each.is_alive()}
        thread = threading.Thread(target=self._run, args=(os.fsdecode(channel), str(data), str(index)))
        self._running.add(thread)
        thread.start()

    def wait(self) -> None:
        """Returns when no script is running any more."""
        while self._running:
            self._running.pop().join()

    def _run(self, channel: str, data: str, index: str) -> None:
        output, problem = b"", ""
        try:
            done = subprocess.run(
                [self._script, channel, data, index],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            output = done.stdout
            if done.returncode > 0:
                problem = f"exit status {done.returncode}"
            elif done.returncode < 0:
                problem = f"signal: {-done.returncode}"
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            problem = f"fork/exec {self._script}: {reason.lower()}"
        text = output.decode("utf-8", "replace")
        if problem:
            script = quoted(os.fsencode(self._script))
            STREAMING.info("Error invoking archive script %s: %s (output=%s)", script, problem, text)
        else:
            STREAMING.info("Output of archive script for %s (%s and %s): %s", channel, data, index, text)
