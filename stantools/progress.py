"""Progress of long work."""

from __future__ import annotations

from collections.abc import Callable

#: Called with how many more bytes (or messages, where it says so) were dealt with; may be called from several threads.
Progress = Callable[[int], object]
