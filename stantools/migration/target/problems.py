"""What is to be made on a server, and what stands in the way of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class Severity(enum.StrEnum):
    """How much a problem matters."""

    #: The work would fail.
    ERROR = "error"
    #: It would go on, but should be known.
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that stands in the way.

    Attributes:
        code: Which kind, the same in all versions: `stream-exists`, `subject-taken`, …
        severity: How much it matters.
        stream: The stream concerned, "" for all of them.
        detail: What is the matter.
        remedy: What can be done about it.
    """

    code: str
    severity: Severity
    stream: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class StreamDemand:
    """A stream that is to be made.

    Attributes:
        config: Its configuration as the API takes it; `name` is always there.
        bytes: What its messages will take, as the server counts it.
        least_bytes: What they will take in any case.
        largest_message: Bytes of the largest message with its headers; 0 if not known.
        consumers: Configurations of its consumers.
        may_exist: It may be there already: it will be replaced, or gone on with.
        updated: It will be given other settings after it was filled.
    """

    config: Mapping[str, Any]
    bytes: int = 0
    least_bytes: int = 0
    largest_message: int = 0
    consumers: Sequence[Mapping[str, Any]] = ()
    may_exist: bool = False
    updated: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.config["name"])

    @property
    def subjects(self) -> list[str]:
        """Its subjects; a stream without any listens on its name."""
        return [str(subject) for subject in self.config.get("subjects") or [self.name]]

    @property
    def replicas(self) -> int:
        """In how many copies it is kept."""
        return int(self.config.get("num_replicas") or 1)

    @property
    def in_memory(self) -> bool:
        """Whether it is kept in memory."""
        return self.config.get("storage") == "memory"
