"""Progress on stderr: amount done, rate, time left, and findings.

`bar` redraws one line on a terminal, `json` writes one object per line for programs, `none` is silent. `auto` is the
bar if stderr is a terminal, and silence otherwise. Nothing is drawn in the first half second, so that short work
stays quiet.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from stantools.cli import console
from stantools.notation import counted, cut, format_left, format_pace, format_size

_QUIET_SECONDS = 0.5
_EVERY = 0.2
JSON_EVERY = 1.0


class StatusLine:
    """One line that is redrawn, or a json object at intervals; a context manager.

    Args:
        task: Name of the work, for example `verify`.
        mode: auto, bar, json or none; by default the user's choice.
    """

    def __init__(self, task: str, mode: str | None) -> None:
        mode = mode or console.progress()
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() else "none"
        self._mode = mode
        self._task = task
        self._done = self._total = 0
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._next = self._started + _QUIET_SECONDS
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def _show(self) -> None:
        """Shows the progress if it is time; the caller holds the lock."""
        now = time.monotonic()
        if self._mode == "none" or now < self._next:
            return
        self._look(now)
        if self._mode == "json":
            self._next = now + JSON_EVERY
            self._write_json(final=False)
        else:
            self._next = now + _EVERY
            text = self._text(now)
            if columns := console.width(err=True):
                text = cut(text, columns - 1)  # a longer line would not be overwritten by the next
            self._width = max(self._width, len(text))
            sys.stderr.write("\r" + text.ljust(self._width))
            sys.stderr.flush()

    def _left(self, rate: float) -> float | None:
        """Returns the seconds left at a rate; None if they are unknown."""
        return (self._total - self._done) / rate if rate and self._total >= self._done else None

    def _look(self, now: float) -> None:
        """Called at each display, before the text is made."""

    def _text(self, now: float) -> str:
        raise NotImplementedError

    def _state(self, now: float, *, final: bool) -> dict[str, Any]:
        raise NotImplementedError

    def _write_json(self, *, final: bool) -> None:
        state = {"progress": self._task, **self._state(time.monotonic(), final=final), "done": final}
        sys.stderr.write(json.dumps(state) + "\n")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


def bar(done: int, total: int) -> str:
    """Returns a bar, and the share done."""
    share = min(done / total, 1.0) if total else 1.0
    filled = int(share * 20)
    return f"[{'#' * filled}{'.' * (20 - filled)}] {share:4.0%}"


class ByteProgress(StatusLine):
    """Shows the bytes done. Threads may advance it.

    Args:
        task: Name of the work, for example `verify`.
        total: Bytes in all, 0 if unknown; a function is called only if something is shown.
        mode: auto, bar, json or none; by default the user's choice.
    """

    def __init__(self, task: str, total: int | Callable[[], int] = 0, mode: str | None = None) -> None:
        super().__init__(task, mode)
        self._total = total if isinstance(total, int) else total() if self._mode != "none" else 0
        self._findings = 0
        self._tasks: tuple[int, int] | None = None

    def __exit__(self, *_: object) -> None:
        if self._mode == "json":
            self._write_json(final=True)
        self._clear()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._show()

    def found(self, *findings: object) -> None:
        with self._lock:
            self._findings += len(findings)

    def tasks(self, done: int, total: int) -> None:
        """Sets the finished tasks of a job that runs on several machines."""
        with self._lock:
            self._tasks = (done, total)
            self._show()

    def _rate(self, now: float) -> float:
        return self._done / max(now - self._started, 1e-6)

    def _state(self, now: float, *, final: bool) -> dict[str, Any]:
        left = self._left(self._rate(now))
        state = {
            "bytes": self._done,
            "total": self._total or None,
            "bytes_per_second": round(self._rate(now)),
            "seconds_left": None if left is None else round(left, 1),
            "findings": self._findings,
        }
        if self._tasks is not None:
            state["tasks"], state["tasks_total"] = self._tasks
        return state

    def _text(self, now: float) -> str:
        begin = f"  {bar(self._done, self._total)}" if self._total else ""
        sizes = f"  {format_size(self._done)}" + (f" of {format_size(self._total)}" if self._total else "")
        pace = f"  {format_pace(self._done, now - self._started, 'bytes')}"
        end = "" if self._tasks is None else f"  {self._tasks[0]} of {self._tasks[1]} tasks"
        end += format_left(self._left(self._rate(now)) if self._total else None)
        end += f"  {counted(self._findings, 'finding')}" if self._findings else ""
        columns = console.width(err=True)
        texts = (f"{self._task}{begin}{middle}{end}" for middle in (sizes + pace, sizes, pace, ""))
        return next((text for text in texts if not columns or len(text) < columns), f"{self._task}{begin}{end}")
