"""What jobs over many stores have in common: what could not be read is told, and the rest is done."""

from __future__ import annotations

from dataclasses import dataclass

from stantools.pipeline.tables.model import Unreadable
from stantools.work import Failure


@dataclass(frozen=True)
class Failed:
    """A store, or a part of one, that a job could not deal with.

    Attributes:
        path: What it is: the store's root, or what lies in it.
        message: Why, naming the file.
        remedy: What to do.
    """

    path: str
    message: str
    remedy: str = ""

    @classmethod
    def unreadable(cls, part: Unreadable) -> Failed:
        """Takes over what was found unreadable before the job began."""
        return cls(part.path, part.message, part.remedy)

    @classmethod
    def task(cls, path: str, failure: Failure) -> Failed:
        """Takes over what a task said."""
        return cls(path, failure.message, failure.remedy)

    def as_json(self) -> dict[str, str]:
        """Returns it as every job has it under `failed`."""
        return {"path": self.path, "message": self.message, "remedy": self.remedy}
