"""Progress of long work."""

from __future__ import annotations

from collections.abc import Callable

#: Called with the number of further bytes (or messages, where noted) processed, possibly from several threads.
Progress = Callable[[int], object]
