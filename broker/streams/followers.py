"""The followers of a stream: consumers, and copies into other streams.

A stream notifies them when it deletes messages. With interest retention they decide which messages stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.stores.streams.contents import Contents


class StreamFollower(Protocol):
    """An observer of a stream that may need its messages."""

    @property
    def last_delivered(self) -> int:
        """The last sequence that was delivered."""

    def removed(self, sequence: int, number: int) -> None:
        """A message is deleted; `number` is that of its subject. The store may still have it."""

    def purged(self, pattern: bytes, first: int) -> None:
        """A purge has deleted messages that match `pattern`, all if empty; `first` is the first one left."""

    def shrunk(self, below: int) -> None:
        """Many messages below a sequence have been deleted."""

    def renew(self) -> None:
        """The stream has a new store."""

    def was_given(self, sequence: int, number: int) -> bool:
        """Returns whether the follower received a message that matched; `number` is that of its subject."""

    def needs(self, sequence: int, number: int) -> bool:
        """Returns whether the follower still needs a message; `number` is that of its subject."""

    def wants(self, subject: bytes) -> bool:
        """Returns whether the follower receives messages with this subject."""


class Followers(list[StreamFollower]):
    """The followers of one stream."""

    @property
    def last_delivered(self) -> int:
        """The last sequence delivered to any of them; 0 without followers."""
        return max((each.last_delivered for each in self), default=0)

    def need(self, contents: Contents, sequence: int) -> bool:
        """Returns whether one of them needs a message."""
        number = self._number(contents, sequence)
        return any(follower.needs(sequence, number) for follower in self)

    def were_given(self, contents: Contents, sequence: int) -> bool:
        """Returns whether one of them received a message."""
        number = self._number(contents, sequence)
        return any(follower.was_given(sequence, number) for follower in self)

    def _number(self, contents: Contents, sequence: int) -> int:
        """Returns the number of the subject of a message."""
        found = contents.locate(sequence) if self else None
        return found[0].subjects[found[1]] if found is not None else 0

    def want(self, subject: bytes) -> bool:
        """Returns whether one of them receives messages with this subject."""
        return any(follower.wants(subject) for follower in self)

    def purged(self, contents: Contents, pattern: bytes) -> None:
        """A purge has deleted messages that match `pattern`, all if empty."""
        if not self:
            return
        first = contents.first
        if pattern:
            wanted = contents.filter((pattern,))
            first = next(iter(contents.matching(wanted, first, 1)), contents.last + 1)
            contents.release(wanted)
        for follower in self:
            follower.purged(pattern, first)

    def shrunk(self, below: int) -> None:
        """Many messages below a sequence have been deleted."""
        for follower in self:
            follower.shrunk(below)
