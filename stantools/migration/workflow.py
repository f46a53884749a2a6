"""A whole migration: problems, plan file, work, results. The command line and the browser use it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stantools.errors import ExitCode, RefusedError, StantoolsError
from stantools.escaping import shell_word
from stantools.migration.broker_state_stream import find_obstacles
from stantools.migration.journal import (
    FOLLOWS,
    Journal,
    JournalObserver,
    StreamOutcome,
    StreamResult,
    check_journal,
    digest_of_journal,
    journal_path,
    remembered_streams,
)
from stantools.migration.plan.checks import find_changes, find_encrypted, find_problems
from stantools.migration.plan.choices import LoadMethod
from stantools.migration.plan.migration_plan import MigrationPlan, Remark, RemarkLevel
from stantools.migration.plan.planfile import read_plan, write_plan
from stantools.migration.prepared_stream import PreparedStream, prepare
from stantools.migration.source import SourceOptions, StoreSource, open_source
from stantools.migration.targets.stream_load import ApplyOptions, ExistingPolicy
from stantools.migration.targets.target import Destination
from stantools.notation import counted
from stantools.progress import Progress
from stantools.store.directory import Datastore
from stantools.store.locks import check_not_in_use


def read_source(store: Datastore, options: SourceOptions, *, progress: Progress | None = None) -> StoreSource:
    """Reads a store in any state, read-only, and tests the key unless payloads may stay encrypted.

    `progress` gets bytes. Raises UsageError for an unknown generation or an empty key, DecryptError for a wrong key.
    """
    source = open_source(store, options, progress=progress)
    if store.key is not None and not options.keep_encrypted:
        for channel in source.channels:
            channel.check_key()
    return source


def signs_of_use(store: Path) -> list[Remark]:
    """Returns a warning for each sign that a server is using a store."""
    text, remedy = "messages that it writes from now on are not migrated", "stop it for a complete migration"
    uses = check_not_in_use(store, force=True)
    return [Remark(RemarkLevel.WARNING, str(store), f"{use.detail}: {text}", remedy) for use in uses]


def default_plan_file(store: Path, *, follows: bool = False) -> Path:
    """Returns the default plan file: in the current directory, named after the store and its folder.

    Most stores have the same name, so the folder is a part of it. An existing plan of this store with the name of
    earlier versions, without the folder, is used instead. A store that is followed has a plan and a journal of its own,
    unless an earlier version began with the common name.
    """
    common = _common_plan_file(store)
    if follows and not digest_of_journal(common).startswith(FOLLOWS):
        return common.with_name(common.name.replace(".migration.", ".follow."))
    return common


def _common_plan_file(store: Path) -> Path:
    place = Path(os.path.abspath(store))  # noqa: PTH100 - of `..` it is the name; links keep theirs
    earlier = Path(f"{place.name}.migration.yaml")
    try:
        if earlier.exists() and Path(read_plan(earlier).source.path).absolute() == place:
            return earlier
    except StantoolsError:
        pass  # an unrelated file is ignored
    name = "-".join(filter(None, (place.parent.name, place.name))).lstrip(".-") or "store"
    return Path(f"{name}.migration.yaml")


def check_plan_file(file: Path, plan: MigrationPlan) -> None:
    """Raises RefusedError if writing the plan would overwrite a different one, which may be edited."""
    if file.exists() and read_plan(file).digest != plan.digest:
        raise RefusedError(
            f"{file}: already exists, and is a different plan",
            f"`stantools migrate apply {shell_word(str(file))}` applies that one; or choose another file with "
            "--plan, or remove it",
        )


def set_aside(file: Path, plan: MigrationPlan) -> None:
    """Renames the plan of a copy that has grown since, and removes its journal: finished streams are recognised."""
    if file.exists() and (earlier := read_plan(file)).digest != plan.digest and earlier.source.path == plan.source.path:
        file.replace(file.with_name(f"{file.name}.earlier"))
        journal_path(file).unlink(missing_ok=True)


@dataclass(frozen=True)
class Migration:
    plan: MigrationPlan
    source: StoreSource | None  #: None for streams that are restored
    target: Destination
    options: ApplyOptions | None = None  #: options of applying; None: the target is not checked for problems
    #: plan file, with the journal beside it; None: earlier runs are unknown
    file: Path | None = None
    follows: bool = False  #: the journal is that of a followed store (`followed_store.open_journal`)
    restored: Sequence[PreparedStream] = ()  #: the streams of a JetStream directory

    @property
    def streams(self) -> Sequence[PreparedStream]:
        return prepare(self.plan, self.source) if self.source else self.restored

    def problems(self) -> list[Remark]:
        plan, source, notes = self.plan, self.source, list[Remark]()
        if source:
            notes += [*find_problems(plan), *find_changes(plan, source), *find_encrypted(plan, source)]
        if source and plan.broker:
            notes += find_obstacles(plan, source)
            if self.options is not None and self.options.existing is ExistingPolicy.APPEND:
                text = "messages appended to a broker's streams are published after the messages that the broker stored"
                notes.append(Remark(RemarkLevel.PROBLEM, "", text, "use --replace to load different streams again"))
        if self.options is not None and not serious(notes):
            begun = remembered_streams(self.file) if self.file else {}
            notes += self.target.problems(self.streams, self.options, begun)
            notes += self._journal_problems()
        return [note for note in notes if note.level is not RemarkLevel.INFO]

    def _journal_problems(self) -> list[Remark]:
        try:
            if self.file is not None and not self.follows:
                check_journal(self.file, self.plan.digest, str(self.plan.target))
        except RefusedError as problem:
            return [Remark(RemarkLevel.PROBLEM, "", problem.message, problem.remedy)]
        return []

    def contents(self) -> Mapping[str, str]:
        """Describes the streams of the plan that exist in the target, by name."""
        return self.target.contents([stream.name for stream in self.plan.streams])

    def keep_plan(self) -> None:
        """Writes the plan, except of a restore, unless the file exists, which may contain notes of the user."""
        assert self.file
        if self.restored:
            return
        begun = journal_path(self.file).exists()
        if not self.file.exists() or (not begun and read_plan(self.file).target.places != self.plan.target.places):
            write_plan(self.file, self.plan)

    def journal(self) -> Journal:
        """Opens the journal beside the plan file, as a context manager.

        Raises RefusedError if another run has it open, or it belongs to another plan or target.
        """
        assert self.file
        return Journal(self.file, self.plan.digest, str(self.plan.target))

    @property
    def amount(self) -> int:
        """Number of messages to process, including messages that are only compared."""
        return self.plan.messages * (2 if self.options and self.options.prove else 1)

    def apply(self, journal: Journal, watch: JournalObserver) -> list[StreamResult]:
        """Applies the plan to every stream, and proves it.

        An interruption leaves complete streams; the next run with the same journal continues or repeats the others.
        """
        assert self.options
        streams = self.streams
        if not self.plan.broker:
            return self.target.apply(streams, journal, self.options, watch)
        # A broker uses a state that it finds, so there must be no state before all else is complete.
        *channels, state = streams
        results = self.target.apply(channels, journal, self.options, watch)
        if not all(result.good for result in results):
            return [*results, StreamResult(state.name, StreamOutcome.NOT_BEGUN)]
        return results + self.target.apply([state], journal, self.options, watch)

    def verify(self, watch: JournalObserver, parallel: int) -> list[StreamResult]:
        remembered = remembered_streams(self.file) if self.file else {}
        published = {name for name, entry in remembered.items() if entry.get("way") == LoadMethod.PUBLISH}
        if self.plan.way is LoadMethod.PUBLISH:
            published = {stream.name for stream in self.plan.streams}
        return self.target.verify(self.streams, published, watch, parallel)


def serious(notes: Sequence[Remark]) -> list[Remark]:
    """Returns the notes that are problems."""
    return [note for note in notes if note.level is RemarkLevel.PROBLEM]


def refuse_problems(problems: Sequence[Remark]) -> None:
    found = serious(problems)
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        about = f"{first.about}: " if first.about else ""
        raise RefusedError(f"nothing was changed: {about}{first.text}{more}", first.remedy)


def refuse(plan: MigrationPlan, problems: Sequence[Remark], *, accept_loss: bool) -> None:
    """Raises RefusedError for problems, or for loss without consent."""
    refuse_problems(problems)
    if plan.lossy and not accept_loss:
        lost = counted(plan.lost, "message", "is/are") if plan.lost else "something is"
        raise RefusedError(
            f"nothing was changed: {lost} missing in the store (see above)",
            "use --accept-loss to migrate the intact messages; see also `stantools verify`",
        )


def foreseen(problems: Sequence[Remark], *, findings: bool) -> ExitCode:
    """Returns the exit code of a dry run; `findings`: messages are lost."""
    return ExitCode.REFUSED if serious(problems) else ExitCode.FINDINGS if findings else ExitCode.CLEAN


def exit_code(plan: MigrationPlan, results: Sequence[StreamResult], *, changed: bool) -> int:
    """Returns the exit code of a plan; `changed`: it was applied, not only compared."""
    failed = [result.error for result in results if result.error]
    if failed:
        code = max(error.exit_code for error in failed)
        # "Refused" means that nothing was changed; here some streams were.
        return ExitCode.FINDINGS if code == ExitCode.REFUSED and len(failed) < len(results) else code
    if any(result.findings for result in results):
        return ExitCode.FINDINGS
    return ExitCode.LOSS if plan.lossy and changed else ExitCode.CLEAN
