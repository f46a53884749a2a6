"""Progress of many streams at once on stderr: messages, rate, time left, and what each stream is doing.

Modes are those of `stantools.cli.progress`: one line redrawn on a terminal, one json object a second, or nothing.
When nothing happens for two seconds, it says for how long, and what is being waited for.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from stantools.cli import console
from stantools.cli.console import escape
from stantools.migration.journal import Watch

_QUIET = 0.5
_EVERY = 0.2
_JSON_EVERY = 1.0
#: Streams that are named on the line.
_NAMED = 3
_SMOOTHING = 0.3
#: Seconds without any progress after which that is said.
_LATE = 2.0


@dataclass
class _Task:
    stage: str
    total: int
    done: int = 0
    started: float = 0.0


class StreamsProgress(Watch):
    """A watch that draws; a context manager.

    Args:
        mode: auto, bar, json or none.
        task: What is going on, for example `migrate`.
        total: Messages to go through in all stages together.
        place: Who is waited for when nothing happens, for example a server's URL.
    """

    def __init__(self, mode: str, task: str, total: int, *, place: str = "") -> None:
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() else "none"
        self._mode = mode
        self._task = task
        self._total = total
        self._done = 0
        self._tasks: dict[str, _Task] = {}
        self._lock = threading.Lock()
        self._place = place
        self._over = threading.Event()
        self._started = self._looked = self._moved = time.monotonic()
        self._seen = 0
        self._rate = 0.0
        self._next = self._started + _QUIET
        self._width = 0

    def __enter__(self) -> StreamsProgress:
        if self._mode != "none":
            threading.Thread(target=self._look_again, name="progress", daemon=True).start()
        return self

    def _look_again(self) -> None:
        """Shows that time passes although nothing happens."""
        while not self._over.wait(_JSON_EVERY):
            with self._lock:
                if self._mode != "none" and self._waiting() >= _LATE:
                    self._show()

    def _waiting(self) -> float:
        return time.monotonic() - self._moved

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with self._lock:
            if self._mode == "json":
                self._write_json(final=kind is None)
            self._clear()
            self._mode = "none"

    def begin(self, stream: str, stage: str, messages: int) -> None:
        """A stage of a stream begins."""
        with self._lock:
            self._moved = time.monotonic()
            self._tasks[stream] = _Task(stage, messages, started=self._moved)
            self._show()

    def advance(self, stream: str, messages: int) -> None:
        """So many more of its messages are done."""
        with self._lock:
            self._moved = time.monotonic()
            self._done += messages
            if task := self._tasks.get(stream):
                task.done += messages
            self._show()

    def end(self, stream: str) -> None:
        """The stage is over."""
        with self._lock:
            self._moved = time.monotonic()
            self._tasks.pop(stream, None)

    def note(self, text: str) -> None:
        """Prints a line above the progress line."""
        with self._lock:
            self._clear()
            console.note(text)

    def _show(self) -> None:
        now = time.monotonic()
        if self._mode == "none" or now < self._next:
            return
        self._measure(now)
        if self._mode == "json":
            self._next = now + _JSON_EVERY
            self._write_json(final=False)
        else:
            self._next = now + _EVERY
            self._draw(now)

    def _measure(self, now: float) -> None:
        """Follows the rate of the last moments: streams differ too much for an average from the start."""
        recent = max(self._done - self._seen, 0) / max(now - self._looked, 1e-6)
        self._rate = recent if not self._rate else self._rate + _SMOOTHING * (recent - self._rate)
        self._seen, self._looked = self._done, now

    def _left(self) -> float | None:
        return (self._total - self._done) / self._rate if self._rate and self._total >= self._done else None

    def _write_json(self, *, final: bool) -> None:
        left = self._left()
        now = time.monotonic()
        state = {
            "progress": self._task,
            "messages": self._done,
            "total": self._total,
            "messages_per_second": round(self._done / max(now - self._started, 1e-6)),
            "seconds_left": None if left is None else round(left, 1),
            "streams": [
                {
                    "stream": name,
                    "stage": str(task.stage),
                    "messages": task.done,
                    "total": task.total,
                    "messages_per_second": round(task.done / max(now - task.started, 1e-6)),
                }
                for name, task in self._tasks.items()
            ],
            "waiting_seconds": round(self._waiting(), 1) if not final and self._waiting() >= _LATE else None,
            "done": final,
        }
        sys.stderr.write(json.dumps(state) + "\n")
        sys.stderr.flush()

    def _draw(self, now: float) -> None:
        share = min(self._done / self._total, 1.0) if self._total else 1.0
        filled = int(share * 20)
        text = f"{self._task}  [{'#' * filled}{'.' * (20 - filled)}] {share:4.0%}  "
        left = self._left()
        if (waiting := self._waiting()) >= _LATE:
            text += f"waiting for {escape(self._place) or 'an answer'}, {waiting:.0f} s"
        else:
            text += f"{_short(self._rate)} msgs/s"
            if left is not None:
                minutes, seconds = divmod(round(left), 60)
                text += f"  {minutes}:{seconds:02d} left"
        parts = [_task_text(name, task, now) for name, task in list(self._tasks.items())[:_NAMED]]
        if len(self._tasks) > _NAMED:
            parts.append(f"and {len(self._tasks) - _NAMED} more")
        if parts:
            text += "  | " + ", ".join(parts)
        self._width = max(self._width, len(text))
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


def _task_text(name: str, task: _Task, now: float) -> str:
    text = f"{task.stage} {escape(name)}"
    if task.total:
        text += f" {min(task.done / task.total, 1.0):.0%}"
        rate = task.done / max(now - task.started, 1e-6)
        if 0 < task.done < task.total:
            text += f" ({(task.total - task.done) / rate:.0f} s)"
    return text


def _short(rate: float) -> str:
    if rate >= 1e6:
        return f"{rate / 1e6:.1f}M"
    return f"{rate / 1e3:.0f}k" if rate >= 1e4 else f"{rate:.0f}"
