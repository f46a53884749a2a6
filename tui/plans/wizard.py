"""The base of all wizards: a form, a plan made of it, texts about both, and the run."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from stantools.errors import ExitCode, RefusedError, StantoolsError
from stantools.escaping import known
from stantools.format.crc import IEEE
from stantools.inspection.report import Report, ReportRemark
from stantools.inspection.source_queries import signs_of_use
from stantools.nats.connect_options import ConnectOptions
from stantools.notation import format_size
from stantools.recovery.place import check_outside, check_room, free_bytes
from stantools.store.atomic import absolute, check_vacant
from stantools.store.directory import Datastore
from stantools.store.locks import StoreUse, check_not_in_use
from stantools.store.read_options import ReadOptions, open_store
from tui.cells import Role, name_text, store_name
from tui.jobs import Job
from tui.plans.form import FormField, OptionForm

if TYPE_CHECKING:
    from stantools.sources.source import Source

_Plan = TypeVar("_Plan")


@dataclass
class PlanPreview:
    report: Report = field(default_factory=Report)
    warnings: list[ReportRemark] = field(default_factory=list)  #: found before there was a plan
    obstacles: list[StantoolsError] = field(default_factory=list)  #: reasons why the plan cannot be carried out
    idle: str = ""  #: reason why there is nothing to do; "" if there is something

    def attempt(self, *checks: Callable[[], object]) -> None:
        """Runs checks (functions without arguments) and adds their errors to the obstacles."""
        for check in checks:
            try:
                check()
            except StantoolsError as problem:
                if all(problem.message != each.message for each in self.obstacles):
                    self.obstacles.append(problem)

    def check_place(self, source: Path, out: Path, room: int) -> None:
        """Checks that a new directory can be made of a source, with `room` bytes."""
        self.attempt(
            partial(check_outside, source, out), partial(check_vacant, absolute(out)), partial(check_room, out, room)
        )

    def add_free(self, place: Path) -> None:
        """Adds the free space of a file system to the facts."""
        self.attempt(lambda: self.report.facts.append(("free", format_size(free_bytes(place)))))


@dataclass
class PlanOutcome:
    report: Report = field(default_factory=Report)
    meaning: str = ""  #: meaning of its exit code
    opens: Path | None = None  #: a new store that can be opened
    changed: bool = False  #: the open store was changed

    @property
    def role(self) -> Role:
        return _ROLES.get(self.report.code, "bad")

    @property
    def next_command(self) -> str:
        return next((line for step in self.report.next for line in step.commands), "")


_ROLES: dict[ExitCode, Role] = {ExitCode.CLEAN: "good", ExitCode.LOSS: "warn", ExitCode.INTERRUPTED: "warn"}


@dataclass(frozen=True)
class SourceStore:
    path: Path  #: its directory, as the user typed it
    read_options: ReadOptions = field(default_factory=ReadOptions)  #: options for reading it
    workers: int = 2  #: number of files read in parallel
    connect_options: ConnectOptions | None = None  #: connection options of a NATS server, if the user gave some
    source: Source | None = None  #: the open source, unless it is the directory of a store

    @property
    def name(self) -> str:
        """The name of its directory, which the user types to confirm a plan."""
        return store_name(self.path)

    @property
    def shown(self) -> str:
        return name_text(self.path)

    @property
    def named(self) -> Path:
        """Its path; of the private copy of what an archive holds, the path in the archive."""
        return Path(known(str(self.path)))

    @property
    def archived(self) -> bool:
        return self.named != self.path

    @property
    def tables(self) -> Path:
        """The path of which tables are made: of a backup of a stream, its unpacked copy."""
        source = self.source
        return source.streams[0].path if source and source.archived and source.streams else self.path

    def uses(self, *, force: bool) -> list[StoreUse]:
        """Returns signs of a server that uses it; without `force`, raises `RefusedError` if there is one.

        Nothing uses the private copy of an archive.
        """
        if self.source is not None and self.source.sql:
            found = signs_of_use(self.source)
            if found and not force:
                raise RefusedError(f"{self.named}: is in use: {found[0].detail}", "stop the server first, or insist")
            return found
        return [] if self.archived else check_not_in_use(self.path, force=force)

    def open(self) -> Datastore:
        return open_store(self.path, self.read_options)

    def beside(self, suffix: str, *, new: bool = True) -> str:
        """Returns the path of the store with a suffix; "" if the path cannot be typed.

        With `new`, a number is appended until no file of that name exists.
        """
        path = self.named
        place = path if path.name not in ("", "..") else path.resolve()
        if place.parts and place.parts[0].endswith(":"):  # the address of a database
            place = Path(place.name.partition("?")[0])
        if not os.fspath(place).isprintable():
            return ""  # the user cannot type it
        candidate, number = place.with_name(f"{place.name}{suffix}"), 1
        while new and os.path.lexists(candidate):
            number += 1
            candidate = place.with_name(f"{place.name}{suffix}-{number}")
        return os.fspath(candidate)

    def reading_words(self, *, unchecked: bool = False) -> list[str]:
        """Returns the command line options for reading the store. With `unchecked`, the verb has --no-crc."""
        words = []
        if self.read_options.polynomial is not None and self.read_options.polynomial != IEEE:
            words += ["--crc-poly", str(self.read_options.polynomial)]
        if unchecked and not self.read_options.check_crc:
            words.append("--no-crc")
        return words


class Wizard(ABC, Generic[_Plan]):
    """An operation on a store; the `fields` make up its form."""

    #: the verb of the command line
    VERB: ClassVar[str]
    #: unit of the progress: bytes or messages
    UNIT: ClassVar[str] = "bytes"
    #: the verb has --no-crc
    UNCHECKED: ClassVar[bool] = False
    #: texts for exit codes
    MEANINGS: ClassVar[Mapping[ExitCode, str]] = {}

    def __init__(self, source: SourceStore, *fields: FormField) -> None:
        self.source = source
        self.form = OptionForm(*fields)
        self._plan: _Plan | None = None

    @property
    def changes_store(self) -> bool:
        """Whether the run changes the open store instead of only reading it."""
        return False

    @property
    def plan(self) -> _Plan:
        assert self._plan is not None
        return self._plan

    @property
    def unused(self) -> Collection[str]:
        """Names of the fields that have no effect with the present values of the others."""
        return ()

    def command(self) -> list[str]:
        words = ["stantools", self.VERB, os.fspath(self.source.named), *self.form.words(without=self.unused)]
        words += self.source.reading_words(unchecked=self.UNCHECKED)
        return [*words, *(["--yes"] if self.changes_store else [])]

    def preview(self, job: Job[PlanPreview]) -> PlanPreview:
        """Makes the plan; only reads. Raises `StantoolsError` if there is no plan."""
        self._plan = None
        preview = PlanPreview()
        self._plan = self.look(job, preview)
        if self.changes_store and self.source.archived:
            preview.obstacles.append(RefusedError("the store is in an archive, which is never changed", "unpack it"))
        return preview

    @abstractmethod
    def look(self, job: Job[PlanPreview], preview: PlanPreview) -> _Plan: ...

    @abstractmethod
    def question(self) -> str: ...

    @abstractmethod
    def run(self, job: Job[PlanOutcome]) -> PlanOutcome:
        """Carries out the last plan. A cancelled run leaves everything unchanged, or as `cancelled` says."""

    def cancelled(self) -> str:
        return f"nothing was written; {self.source.shown} is unchanged"

    def look_for_uses(self, job: Job[PlanPreview], preview: PlanPreview, warning: str) -> None:
        """Adds signs of a server that uses the store, with a `warning`. Without `force` they are obstacles."""
        job.begin_phase("looking for a server")
        try:
            for use in self.source.uses(force=self.form.flag("force")):
                preview.warnings.append(ReportRemark("warning", f"{use.detail}: {warning}", "warn"))
        except StantoolsError as problem:
            preview.obstacles.append(problem)

    def refuse_uses(self, job: Job[PlanOutcome]) -> None:
        """Raises `RefusedError` if a server is using the store, unless the form overrides the check."""
        job.begin_phase("looking for a server")
        self.source.uses(force=self.form.flag("force"))

    def outcome(self, report: Report, opens: Path | None = None) -> PlanOutcome:
        meaning = self.MEANINGS.get(report.code, "failed")
        return PlanOutcome(report, meaning, opens, changed=self.changes_store)


@dataclass(frozen=True)
class WizardEntry:
    verb: str  #: verb of the command line
    does: str  #: purpose, in a sentence
    changes: str  #: effect on the open store
    module: str  #: its module, imported when the wizard is opened
    name: str  #: its class
    of_streams: tuple[str, str] | None = None  #: module and class of another one for JetStream directories

    def make(self, source: SourceStore) -> Wizard[Any]:
        streams = source.source is not None and source.source.holds_streams
        module, name = self.of_streams if streams and self.of_streams else (self.module, self.name)
        wizard: Any = getattr(importlib.import_module(module), name)
        made: Wizard[Any] = wizard(source)
        return made


WIZARDS: tuple[WizardEntry, ...] = (
    WizardEntry(
        "salvage",
        "a new store with every intact message",
        "only read",
        "tui.plans.salvage",
        "SalvageWizard",
        ("tui.plans.stream_salvage", "StreamSalvageWizard"),
    ),
    WizardEntry(
        "compact",
        "the same store without dead records",
        "read, or replaced and kept beside it",
        "tui.plans.compact",
        "CompactWizard",
    ),
    WizardEntry(
        "truncate-bad-eof",
        "the server's own repair: broken ends are cut off",
        "changed; removed bytes are saved first",
        "tui.plans.truncate",
        "TruncateWizard",
    ),
    WizardEntry(
        "export",
        "messages or other tables as Parquet, text or a database",
        "only read",
        "tui.plans.export",
        "ExportWizard",
    ),
    WizardEntry(
        "migrate",
        "channels into JetStream streams, durables into consumers",
        "only read",
        "tui.plans.migrate",
        "MigrateWizard",
        ("tui.plans.stream_migrate", "StreamMigrateWizard"),
    ),
)
