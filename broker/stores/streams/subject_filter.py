"""The subjects of a stream's messages, and filters: sets of subjects that match patterns."""

from __future__ import annotations

from typing import Final

#: subjects that a filter lists singly; with more, it has a byte for each subject of the stream
_FEW_SUBJECTS: Final = 64


class SubjectRows:
    """A subject of stored messages.

    Attributes:
        number: Its number in the columns.
        count: Messages.
        first: A lower bound for the sequence of the first one.
        last: The sequence of the last one.
    """

    __slots__ = ("count", "first", "last", "name", "number")

    def __init__(self, name: bytes, number: int) -> None:
        self.name, self.number = name, number
        self.count = self.first = self.last = 0


class SubjectFilter:
    """Patterns, of which a subject must match one.

    Attributes:
        few: The matching subjects by number; None if there are many.
        mask: If there are many: 1 at the numbers of matching subjects. Numbers beyond its end do not match.
    """

    __slots__ = ("few", "mask", "patterns", "users")

    def __init__(self, patterns: tuple[bytes, ...]) -> None:
        self.patterns = patterns
        self.few: dict[int, SubjectRows] | None = {}
        self.mask = bytearray()
        self.users = 0

    def has(self, number: int) -> bool:
        if self.few is not None:
            return number in self.few
        return number < len(self.mask) and self.mask[number] != 0

    def learn(self, subject: SubjectRows) -> None:
        """Adds a matching subject."""
        few, number = self.few, subject.number
        if few is None:
            self.reach(number + 1)
            self.mask[number] = 1
            return
        few[number] = subject
        if len(few) > _FEW_SUBJECTS:
            self.few = None
            for each in few.values():
                self.learn(each)

    def forget(self, number: int) -> None:
        if self.few is not None:
            self.few.pop(number, None)
        elif number < len(self.mask):
            self.mask[number] = 0

    def forget_all(self) -> None:
        self.few, self.mask = {}, bytearray()

    def reach(self, size: int) -> None:
        """Extends the mask to at least `size` bytes."""
        if len(self.mask) < size:
            self.mask.extend(bytes(max(64, size - len(self.mask), len(self.mask))))
