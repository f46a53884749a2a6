"""Progress on stderr: bytes, rate, time left, findings so far.

`bar` redraws one line on a terminal, `json` writes one object a line for other programs, `none` is silent.
`auto` is the bar if stderr is a terminal and silence otherwise. Nothing is drawn in the first half second, so
that short work stays quiet.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from types import TracebackType

from stantools.cli.values import format_size

_QUIET = 0.5
_EVERY = 0.2
_JSON_EVERY = 1.0


class Progress:
    """Shows how far a piece of work is; a context manager. May be advanced from several threads.

    Args:
        mode: auto, bar, json or none.
        task: What is going on, for example `verify`.
        total: Bytes to go through, 0 if not known.
    """

    def __init__(self, mode: str, task: str, total: int = 0) -> None:
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() else "none"
        self._mode = mode
        self._task = task
        self.total = total
        self._done = 0
        self._findings = 0
        self._tasks: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._next = self._started + _QUIET
        self._width = 0

    @property
    def active(self) -> bool:
        """Something is shown: it is worth finding out the total."""
        return self._mode != "none"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mode == "json":
            self._write_json(final=True)
        elif self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def advance(self, count: int) -> None:
        """Says that so many more bytes are done."""
        with self._lock:
            self._done += count
            self._show()

    def report(self, done: int, total: int | None = None) -> None:
        """Says how many bytes are done altogether, and corrects how many there are."""
        with self._lock:
            self._done = done
            if total is not None:
                self.total = total
            self._show()

    def found(self, count: int = 1) -> None:
        """Says that something was found."""
        with self._lock:
            self._findings += count

    def tasks(self, done: int, total: int) -> None:
        """Says how many of the tasks are done that the work consists of, where it runs on several machines."""
        with self._lock:
            self._tasks = (done, total)
            self._show()

    def _show(self) -> None:
        if self._mode == "none":
            return
        now = time.monotonic()
        if now < self._next:
            return
        if self._mode == "json":
            self._next = now + _JSON_EVERY
            self._write_json()
        else:
            self._next = now + _EVERY
            self._draw()

    def _rate(self) -> float:
        return self._done / max(time.monotonic() - self._started, 1e-6)

    def _left(self) -> float | None:
        rate = self._rate()
        return (self.total - self._done) / rate if rate and self.total >= self._done else None

    def _write_json(self, final: bool = False) -> None:
        left = self._left()
        state = {
            "progress": self._task,
            "bytes": self._done,
            "total": self.total or None,
            "bytes_per_second": round(self._rate()),
            "seconds_left": None if left is None else round(left, 1),
            "findings": self._findings,
            "done": final,
        }
        if self._tasks is not None:
            state["tasks"], state["tasks_total"] = self._tasks
        sys.stderr.write(json.dumps(state) + "\n")
        sys.stderr.flush()

    def _draw(self) -> None:
        text = f"{self._task}  {format_size(self._done)}"
        if self.total:
            share = min(self._done / self.total, 1.0)
            filled = int(share * 20)
            text = (
                f"{self._task}  [{'#' * filled}{'.' * (20 - filled)}] {share:4.0%}"
                f"  {format_size(self._done)} of {format_size(self.total)}"
            )
        text += f"  {format_size(int(self._rate()))}/s"
        if self._tasks is not None:
            text += f"  {self._tasks[0]} of {self._tasks[1]} tasks"
        left = self._left() if self.total else None
        if left is not None:
            minutes, seconds = divmod(round(left), 60)
            text += f"  {minutes}:{seconds:02d} left"
        if self._findings:
            text += f"  {self._findings} findings"
        self._width = max(self._width, len(text))
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
