"""What every wizard has: a form, a plan that is made of it, what is shown of both, and how it is carried out."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from stantools.errors import ExitCode, StantoolsError
from stantools.format.crc import IEEE
from stantools.nats.options import ConnectOptions
from stantools.notation import format_size
from stantools.recovery.place import free_bytes
from stantools.store.directory import Datastore
from stantools.store.locks import check_not_in_use
from stantools.store.options import ReadOptions, open_store
from tui.cells import Cell, Role, name_text, store_name
from tui.jobs import Job
from tui.plans.form import Field, Form
from tui.rows import Column

_Plan = TypeVar("_Plan")

#: Things of one kind that are listed one by one; of more, only how many.
MANY = 200


@dataclass(frozen=True)
class Remark:
    """Something to be known, as a paragraph."""

    word: str  #: what kind of thing, at its beginning: "missing before", "changed", "warning"
    text: str  #: what
    role: Role = "dim"  #: how the word is meant


@dataclass
class Account:
    """A table with what is to be known besides."""

    verdict: Cell = ""  #: the most important, in a sentence
    facts: list[tuple[str, Cell]] = field(default_factory=list)  #: what is counted or named: label and value
    columns: Sequence[Column[Any]] = ()  #: of the table
    rows: Sequence[Any] = ()  #: the things in it
    remarks: list[Remark] = field(default_factory=list)  #: what cannot be a row

    def remark(self, remarks: Sequence[Remark], many: str) -> None:
        """Adds remarks, but no endless list.

        Args:
            remarks: All of them.
            many: What they are, where they are only counted: "more places".
        """
        self.remarks += remarks[:MANY]
        if len(remarks) > MANY:
            self.remarks.append(Remark("…", f"and {len(remarks) - MANY:,} {many}"))


@dataclass
class Preview(Account):
    """What would happen."""

    obstacles: list[StantoolsError] = field(default_factory=list)  #: why it cannot be done as it was asked for
    idle: str = ""  #: why there is nothing to do; "" if there is

    def attempt(self, *checks: Callable[[], object]) -> None:
        """Makes checks, and adds what they raise to the obstacles; each is a function without arguments."""
        for check in checks:
            try:
                check()
            except StantoolsError as problem:
                if all(problem.message != each.message for each in self.obstacles):
                    self.obstacles.append(problem)

    def add_free(self, place: Path) -> None:
        """Says how much room there is at a place."""
        self.attempt(lambda: self.facts.append(("free", format_size(free_bytes(place)))))


@dataclass
class Outcome(Account):
    """What has happened."""

    code: ExitCode = ExitCode.CLEAN  #: what the command line would have ended with
    meaning: str = ""  #: what that says
    opens: Path | None = None  #: a store that was written, to be opened
    next_text: str = ""  #: what to do next, in a sentence
    next_command: Sequence[str] = ()  #: the command line for that, if there is one
    changed: bool = False  #: the store that is open was changed

    @property
    def role(self) -> Role:
        """How good it is."""
        return {ExitCode.CLEAN: "good", ExitCode.LOSS: "warn", ExitCode.INTERRUPTED: "warn"}.get(self.code, "bad")  # type: ignore[return-value]


@dataclass(frozen=True)
class SourceStore:
    """The store that a plan is about."""

    path: Path  #: its directory, as the user wrote it
    reading: ReadOptions = field(default_factory=ReadOptions)  #: how it is read
    workers: int = 2  #: files that are read at the same time
    connecting: ConnectOptions | None = None  #: how to reach a NATS server, if the user has said so

    @property
    def name(self) -> str:
        """The name of its directory, which has to be typed before anything is written."""
        return store_name(self.path)

    @property
    def shown(self) -> str:
        """Its path, harmless."""
        return name_text(self.path)

    @property
    def _whole(self) -> Path:
        return self.path if self.path.name not in ("", "..") else self.path.resolve()

    def open(self) -> Datastore:
        """Opens the store as it is now.

        Raises:
            StoreUnreadableError: It is not a store any more.
        """
        return open_store(self.path, self.reading)

    def beside(self, suffix: str, *, new: bool = True) -> str:
        """Returns a path beside the store: the store's with a suffix; "" if it could not be typed.

        Args:
            suffix: The suffix.
            new: Nothing may be there yet: then a number follows if need be.
        """
        place = self._whole
        if not os.fspath(place).isprintable():
            return ""  # cannot be typed, so it is not suggested
        candidate, number = place.with_name(f"{place.name}{suffix}"), 1
        while new and os.path.lexists(candidate):
            number += 1
            candidate = place.with_name(f"{place.name}{suffix}-{number}")
        return os.fspath(candidate)

    def reading_words(self, *, unchecked: bool = False) -> list[str]:
        """Returns the options of the command line for how the store is read.

        Args:
            unchecked: The verb has --no-crc.
        """
        words = []
        if self.reading.polynomial is not None and self.reading.polynomial != IEEE:
            words += ["--crc-poly", str(self.reading.polynomial)]
        if unchecked and not self.reading.check_crc:
            words.append("--no-crc")
        return words


class Wizard(ABC, Generic[_Plan]):
    """Something that can be done with a store.

    Args:
        fields: What can be chosen.
    """

    #: The verb of the command line.
    VERB: ClassVar[str]
    #: What is counted while it runs: bytes or messages.
    UNIT: ClassVar[str] = "bytes"
    #: The table of the preview.
    COLUMNS: ClassVar[Sequence[Column[Any]]] = ()
    #: The verb has --no-crc.
    UNCHECKED: ClassVar[bool] = False
    #: What exit codes say.
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {}

    def __init__(self, source: SourceStore, *fields: Field) -> None:
        self.source = source
        self.form = Form(*fields)  #: what can be chosen
        self._plan: _Plan | None = None

    @property
    def changes_store(self) -> bool:
        """The store itself is changed, instead of something new being written."""
        return False

    @property
    def plan(self) -> _Plan:
        """The plan of the last preview."""
        assert self._plan is not None
        return self._plan

    @property
    def unused(self) -> Collection[str]:
        """Fields that do not matter as the form is filled in now."""
        return ()

    def command(self) -> list[str]:
        """Returns the command line that does the same."""
        words = ["stantools", self.VERB, os.fspath(self.source.path), *self.form.words(without=self.unused)]
        words += self.source.reading_words(unchecked=self.UNCHECKED)
        return [*words, *(["--yes"] if self.changes_store else [])]

    def preview(self, job: Job[Preview]) -> Preview:
        """Makes the plan; only reads.

        Args:
            job: Learns how far it is.

        Raises:
            StantoolsError: There is no plan.
        """
        self._plan = None
        preview = Preview(columns=self.COLUMNS)
        self._plan = self.look(job, preview)
        return preview

    @abstractmethod
    def look(self, job: Job[Preview], preview: Preview) -> _Plan:
        """Makes the plan and fills the preview; see `preview`."""

    @abstractmethod
    def question(self) -> str:
        """Says what is going to be done, in a sentence, once there is a plan."""

    @abstractmethod
    def run(self, job: Job[Outcome]) -> Outcome:
        """Carries out the plan of the last preview.

        Args:
            job: Learns how far it is. Where it is cancelled, everything is as it was before, or as `cancelled` says.

        Raises:
            StantoolsError: It could not be done.
        """

    def cancelled(self) -> str:
        """Says what is left when a run was cancelled."""
        return f"nothing was written; {self.source.shown} is as it was"

    def look_for_uses(self, job: Job[Preview], preview: Preview, warning: str) -> None:
        """Adds what a server that is using the store means.

        Args:
            job: Learns what is done.
            preview: What is added to.
            warning: What may happen if one continues all the same.
        """
        job.begin_phase("looking for a server")
        try:
            for use in check_not_in_use(self.source.path, force=self.form.flag("force")):
                preview.remarks.append(Remark("warning", f"{use.detail}: {warning}", "warn"))
        except StantoolsError as problem:
            preview.obstacles.append(problem)

    def refuse_uses(self, job: Job[Outcome]) -> None:
        """Looks once more whether a server is using the store.

        Raises:
            RefusedError: One is, and nobody insists.
        """
        job.begin_phase("looking for a server")
        check_not_in_use(self.source.path, force=self.form.flag("force"))

    def outcome(self, code: ExitCode, columns: Sequence[Column[Any]], rows: Sequence[Any]) -> Outcome:
        """Returns what has happened, with a table."""
        return Outcome(code=code, meaning=self.MEANINGS.get(code, "failed"), columns=columns, rows=rows)


@dataclass(frozen=True)
class Entry:
    """A wizard that can be chosen."""

    verb: str  #: the verb of the command line
    does: str  #: what it does, in a sentence
    changes: str  #: what becomes of the store
    module: str  #: where it is; imported when it is chosen
    name: str  #: its class

    def make(self, source: SourceStore) -> Wizard[Any]:
        """Makes the wizard for a store."""
        wizard: Any = getattr(importlib.import_module(self.module), self.name)
        made: Wizard[Any] = wizard(source)
        return made


WIZARDS: tuple[Entry, ...] = (
    Entry("salvage", "a new store with every intact message", "only read", "tui.plans.salvage", "SalvageWizard"),
    Entry(
        "compact",
        "the same store without dead records",
        "read, or replaced and kept beside it",
        "tui.plans.compact",
        "CompactWizard",
    ),
    Entry(
        "truncate-bad-eof",
        "the server's own repair: broken ends are cut off",
        "changed; what goes is saved before",
        "tui.plans.truncate",
        "TruncateWizard",
    ),
    Entry(
        "export",
        "messages, or another table, as Parquet, ndjson or csv",
        "only read",
        "tui.plans.export",
        "ExportWizard",
    ),
    Entry(
        "migrate",
        "channels into JetStream streams, durables into consumers",
        "only read",
        "tui.plans.migrate",
        "MigrateWizard",
    ),
)


def entry(verb: str | None) -> Entry | None:
    """Returns the wizard of a verb, if there is one."""
    return next((each for each in WIZARDS if each.verb == verb), None)
