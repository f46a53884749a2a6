"""Whoever wants to show how far a migration is: told what each stream is doing, in messages."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Protocol

from stantools.migration.batches import Batch


class Stage(enum.StrEnum):
    """What is being done with a stream."""

    LOAD = "load"
    PROVE = "prove"


class Watch(Protocol):
    """Told of every step. May be called from several threads."""

    def begin(self, stream: str, stage: Stage, messages: int) -> None:
        """A stage of a stream begins, with so many messages to go."""

    def advance(self, stream: str, messages: int) -> None:
        """So many more of them are done; a negative number when a part has to be done again."""

    def end(self, stream: str) -> None:
        """The stage is over."""

    def note(self, text: str) -> None:
        """Something happened that whoever waits should know."""


class Unwatched:
    """Nobody is looking."""

    def begin(self, stream: str, stage: Stage, messages: int) -> None:
        """Does nothing."""

    def advance(self, stream: str, messages: int) -> None:
        """Does nothing."""

    def end(self, stream: str) -> None:
        """Does nothing."""

    def note(self, text: str) -> None:
        """Does nothing."""


def counted(batches: Iterator[Batch], watch: Watch, stream: str) -> Iterator[Batch]:
    """Gives batches on, and tells how many messages have passed."""
    for batch in batches:
        yield batch
        watch.advance(stream, len(batch))


class Counter:
    """Passes progress on and remembers it, so that it can be taken back."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.messages = 0

    def begin(self, stream: str, stage: Stage, messages: int) -> None:
        """Passes it on."""
        self._watch.begin(stream, stage, messages)

    def advance(self, stream: str, messages: int) -> None:
        """Passes it on and adds it up."""
        self.messages += messages
        self._watch.advance(stream, messages)

    def end(self, stream: str) -> None:
        """Passes it on."""
        self._watch.end(stream)

    def note(self, text: str) -> None:
        """Passes it on."""
        self._watch.note(text)

    def take_back(self, stream: str) -> None:
        """Says that what was done has to be done again."""
        self._watch.advance(stream, -self.messages)
        self.messages = 0
