"""What jobs over many stores have in common: what could not be read is reported, and the rest is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from stantools.errors import ExitCode
from stantools.pipeline.tables.model import Failed


class StoreResult(Protocol):
    """What a job came to for one store."""

    @property
    def clean(self) -> bool:
        """Returns whether all is well with it."""

    def as_json(self) -> dict[str, Any]:
        """Returns the json of the local verb, with the store in front."""


S = TypeVar("S", bound=StoreResult)


@dataclass
class JobResult(Generic[S]):
    """What a job came to."""

    stores: list[S] = field(default_factory=list)  #: what became of each store, in the order in which they were given
    failed: list[Failed] = field(default_factory=list)  #: what could not be read

    @property
    def clean(self) -> bool:
        """Everything could be read, and all is well with every store."""
        return not self.failed and all(store.clean for store in self.stores)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that says so."""
        return ExitCode.CLEAN if self.clean else ExitCode.FINDINGS

    def as_json(self) -> dict[str, Any]:
        """Returns the result as the jobs' json contract has it."""
        return {
            "clean": self.clean,
            "stores": [store.as_json() for store in self.stores],
            "failed": [each.as_json() for each in self.failed],
        }
