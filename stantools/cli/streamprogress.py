"""Progress of many streams on stderr: messages, rate, time left, and the stage of each stream."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from stantools.cli import console
from stantools.cli.console import escape
from stantools.cli.progress import JSON_EVERY, StatusLine, bar
from stantools.migration.journal import FollowState, JournalObserver
from stantools.notation import counted, format_left, format_pace

#: streams named on the line
_NAMED = 3
_SMOOTHING = 0.3
#: Seconds without progress until that is shown.
_STALL_SECONDS = 2.0


@dataclass
class _StreamStageLine:
    stage: str
    total: int
    done: int = 0
    started: float = 0.0


class StreamsProgress(StatusLine, JournalObserver):
    """Shows many streams at once: messages, rate, and the stage of each stream.

    After two seconds without progress it shows for how long, and what it is waiting for.

    Args:
        task: Name of the work, for example `migrate`.
        total: Messages of all stages together.
        place: The awaited server's URL, for example.
        mode: auto, bar, json or none; by default the user's choice.
    """

    def __init__(self, task: str, total: int, *, place: str = "", mode: str | None = None) -> None:
        super().__init__(task, mode)
        self._total = total
        self._tasks: dict[str, _StreamStageLine] = {}
        self._place = place
        self._over = threading.Event()
        self._last_look = self._last_advance = self._started
        self._done_at_look = 0
        self._rate = 0.0
        self._follow: FollowState | None = None
        self._in_step = False
        self._finished = 0  # streams finished since the streams were in step

    def __enter__(self) -> Self:
        if self._mode != "none":
            threading.Thread(target=self._redraw_stalled, name="progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with self._lock:
            if self._mode == "json":
                self._write_json(final=kind is None)
            self._clear()
            self._mode = "none"

    def _redraw_stalled(self) -> None:
        """Redraws the line to show the time passing without progress."""
        while not self._over.wait(JSON_EVERY):
            with self._lock:
                if self._mode != "none" and (self._follow or self._waiting() >= _STALL_SECONDS):
                    self._show()

    def _waiting(self) -> float:
        return time.monotonic() - self._last_advance

    def begin(self, stream: str, stage: str, messages: int) -> None:
        with self._lock:
            self._last_advance = time.monotonic()
            self._tasks[stream] = _StreamStageLine(stage, messages, started=self._last_advance)
            self._show()

    def advance(self, stream: str, messages: int) -> None:
        with self._lock:
            self._last_advance = time.monotonic()
            self._done += messages
            if task := self._tasks.get(stream):
                task.done += messages
            self._show()

    def end(self, stream: str) -> None:
        with self._lock:
            self._last_advance = time.monotonic()
            self._finished += self._in_step
            self._tasks.pop(stream, None)

    def note(self, text: str) -> None:
        """Prints a line above the progress line."""
        with self._lock:
            self._clear()
            console.note(text)

    def followed(self, state: FollowState) -> None:
        """Shows the state of a followed store; says once that the streams are in step, and what to do now."""
        with self._lock:
            self._follow = state
            if not state.behind and not self._in_step:
                self._in_step = True
                self._clear()
                console.note(
                    f"{state.describe(time.time())}, {counted(state.channels, 'channel')}", _ADVICE[state.ending]
                )
            self._show()

    def _look(self, now: float) -> None:
        """Measures the recent rate: streams differ too much for an average from the start."""
        recent = max(self._done - self._done_at_look, 0) / max(now - self._last_look, 1e-6)
        self._rate = recent if not self._rate else self._rate + _SMOOTHING * (recent - self._rate)
        self._done_at_look, self._last_look = self._done, now

    def _state(self, now: float, *, final: bool) -> dict[str, Any]:
        left = self._left(self._rate)
        return {
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
            "follow": None if self._follow is None else self._follow.as_json(time.time()),
            "waiting_seconds": round(self._waiting(), 1) if not final and self._waiting() >= _STALL_SECONDS else None,
        }

    def _text(self, now: float) -> str:
        if self._follow and not self._tasks:
            return f"{self._task}  {self._follow.describe(time.time())}  {self._follow.carried:,} carried"
        text = f"{self._task}  {bar(self._done, self._total)}  "
        if self._follow and self._in_step:
            text = f"{self._task}  {bar(self._finished, self._follow.channels)}  {self._finished} streams finished"
        elif (waiting := self._waiting()) >= _STALL_SECONDS:
            text += f"waiting for {escape(self._place) or 'an answer'}, {waiting:.0f} s"
        else:
            text += format_pace(self._rate, 1, "msgs") + format_left(self._left(self._rate))
        parts = [_task_text(name, task, now) for name, task in list(self._tasks.items())[:_NAMED]]
        if len(self._tasks) > _NAMED:
            parts.append(f"and {len(self._tasks) - _NAMED} more")
        return text + (f"  | {', '.join(parts)}" if parts else "")


#: What to do when the streams are in step; the second if the run finishes them.
_ADVICE = (
    "when the applications are prepared: Ctrl-C, then the same command with --cutover",
    "when you are ready: stop producers, consumers, then the server; this command then ends by itself",
)


def _task_text(name: str, task: _StreamStageLine, now: float) -> str:
    text = f"{task.stage} {escape(name)}"
    if task.total:
        text += f" {min(task.done / task.total, 1.0):.0%}"
        rate = task.done / max(now - task.started, 1e-6)
        if 0 < task.done < task.total:
            text += f" ({(task.total - task.done) / rate:.0f} s)"
    return text
