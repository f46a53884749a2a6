"""A migration as a whole: what is in its way, the plan file, the work, and what became of it.

What the command line does stage by stage, and the browser step by step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stantools.errors import ExitCode, RefusedError, StantoolsError
from stantools.escaping import shell_word
from stantools.migration.journal import Journal, Outcome, StreamResult, Watch, journal_path, remembered_streams
from stantools.migration.plan.checks import find_changes, find_encrypted, find_problems
from stantools.migration.plan.model import Level, Note, Plan, Way
from stantools.migration.plan.planfile import read_plan, write_plan
from stantools.migration.prepared import prepare
from stantools.migration.source import SourceOptions, StoreSource, open_source
from stantools.migration.takeover import find_obstacles
from stantools.migration.targets.loading import ApplyOptions, Existing
from stantools.migration.targets.target import Destination
from stantools.notation import counted
from stantools.progress import Progress
from stantools.store.directory import Datastore
from stantools.store.locks import check_not_in_use


def read_source(store: Datastore, options: SourceOptions, *, progress: Progress | None = None) -> StoreSource:
    """Reads a store and says what can be migrated from it; tries the key on it, unless payloads may stay encrypted.

    Args:
        store: The store, in any state; nothing in it is changed.
        options: What is taken of it.
        progress: Called with the number of bytes as they are read.

    Raises:
        UsageError: There is no such generation, or the key is empty.
        DecryptError: The key is not that of the store.
        StoreUnreadableError: It cannot be read.
    """
    source = open_source(store, options, progress=progress)
    if store.key is not None and not options.keep_encrypted:
        for channel in source.channels:
            channel.check_key()
    return source


def signs_of_use(store: Path) -> list[Note]:
    """Returns a warning for each sign that a server is using a store."""
    text, remedy = "what it writes from now on is not migrated", "stop it for a complete migration"
    uses = check_not_in_use(store, force=True)
    return [Note(Level.WARNING, str(store), f"{use.detail}: {text}", remedy) for use in uses]


def default_plan_file(store: Path) -> Path:
    """Returns where a plan is written if nothing else is said: beside where the user is, called like the store.

    Most stores are called alike, so the folder that one lies in is a part of the name. A plan that is there under the
    name that earlier versions gave it, without the folder, is taken if it is of this store.
    """
    place = Path(os.path.abspath(store))  # noqa: PTH100 - of `..` it is the name; links keep theirs
    earlier = Path(f"{place.name}.migration.yaml")
    try:
        if earlier.exists() and Path(read_plan(earlier).source.path).absolute() == place:
            return earlier
    except StantoolsError:
        pass  # whatever it is, it is not in the way
    name = "-".join(filter(None, (place.parent.name, place.name))).lstrip(".-") or "store"
    return Path(f"{name}.migration.yaml")


def check_plan_file(file: Path, plan: Plan) -> None:
    """Takes care that a plan that somebody may have edited is not overwritten.

    Raises:
        RefusedError: There is another one.
    """
    if file.exists() and read_plan(file).digest != plan.digest:
        raise RefusedError(
            f"{file}: already exists, and is another plan",
            f"`stantools migrate apply {shell_word(str(file))}` carries that one out; or choose another file with "
            "--plan, or remove it",
        )


@dataclass(frozen=True)
class Migration:
    """A plan with its store and its target: what is in its way, and the work."""

    plan: Plan
    source: StoreSource  #: the store that it is for
    target: Destination  #: where it goes
    options: ApplyOptions | None = None  #: how it is carried out; without, the target is not asked about problems
    #: The plan file, which the journal lies beside; without, nothing is remembered of earlier runs.
    file: Path | None = None

    def problems(self) -> list[Note]:
        """Returns what is in the way of the plan, and what else should be known.

        Raises:
            StantoolsError: The target cannot be asked.
        """
        plan, source = self.plan, self.source
        notes = [*find_problems(plan), *find_changes(plan, source), *find_encrypted(plan, source)]
        if plan.broker:
            notes += find_obstacles(plan, source)
            if self.options is not None and self.options.existing is Existing.APPEND:
                text = "what is appended to a broker's streams is published, and comes behind what the broker stored"
                notes.append(Note(Level.PROBLEM, "", text, "--replace loads streams that differ again"))
        if self.options is not None and not serious(notes):
            begun = remembered_streams(self.file) if self.file else {}
            notes += self.target.problems(prepare(plan, source), self.options, begun)
        return [note for note in notes if note.level is not Level.INFO]

    def keep_plan(self) -> None:
        """Writes the plan, unless it already exists: then somebody may have made notes in it.

        Raises:
            StoreUnwritableError: It cannot be written.
        """
        assert self.file
        begun = journal_path(self.file).exists()
        if not self.file.exists() or (not begun and read_plan(self.file).target.places != self.plan.target.places):
            write_plan(self.file, self.plan)

    def journal(self) -> Journal:
        """Opens the journal beside the plan file, to be closed by its block.

        Raises:
            RefusedError: Another run has it open, or it was written for another plan or target.
            StoreUnreadableError: It cannot be read, or is no journal.
            StoreUnwritableError: It cannot be written.
        """
        assert self.file
        return Journal(self.file, self.plan.digest, str(self.plan.target))

    @property
    def amount(self) -> int:
        """How many messages are dealt with when the plan is carried out, those that are only compared included."""
        return self.plan.messages * (2 if self.options and self.options.prove else 1)

    def apply(self, journal: Journal, watch: Watch) -> list[StreamResult]:
        """Makes every stream what the plan says, and proves it.

        Interrupted, it leaves streams that are complete; what was under way is gone on with, or begun again, by the
        next run with the same journal.

        Args:
            journal: From `journal`.
            watch: Learns how far each stream is.
        """
        assert self.options
        streams = prepare(self.plan, self.source)
        if not self.plan.broker:
            return self.target.apply(streams, journal, self.options, watch)
        # A broker that finds its state goes on with it, so there must be no state before all else is there.
        *channels, state = streams
        results = self.target.apply(channels, journal, self.options, watch)
        if not all(result.good for result in results):
            return [*results, StreamResult(state.name, Outcome.NOT_BEGUN)]
        return results + self.target.apply([state], journal, self.options, watch)

    def verify(self, watch: Watch, parallel: int) -> list[StreamResult]:
        """Compares every stream with the store.

        Args:
            watch: Learns how far each stream is.
            parallel: Streams that are read at the same time.
        """
        remembered = remembered_streams(self.file) if self.file else {}
        published = {name for name, entry in remembered.items() if entry.get("way") == Way.PUBLISH}
        if self.plan.way is Way.PUBLISH:
            published = {stream.name for stream in self.plan.streams}
        return self.target.verify(prepare(self.plan, self.source), published, watch, parallel)


def serious(notes: Sequence[Note]) -> list[Note]:
    """Returns the notes that are in the way."""
    return [note for note in notes if note.level is Level.PROBLEM]


def refuse_problems(problems: Sequence[Note]) -> None:
    """Stops where something is in the way.

    Raises:
        RefusedError: Always in this case.
    """
    found = serious(problems)
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        about = f"{first.about}: " if first.about else ""
        raise RefusedError(f"nothing was changed: {about}{first.text}{more}", first.remedy)


def refuse(plan: Plan, problems: Sequence[Note], *, accept_loss: bool) -> None:
    """Stops where something is in the way, or is lost without consent.

    Raises:
        RefusedError: Always in these cases.
    """
    refuse_problems(problems)
    if plan.lossy and not accept_loss:
        lost = counted(plan.lost, "message", "is/are") if plan.lost else "something is"
        raise RefusedError(
            f"nothing was changed: {lost} missing in the store (see above)",
            "--accept-loss migrates what is intact; `stantools verify` says more",
        )


def foreseen(problems: Sequence[Note], *, findings: bool) -> ExitCode:
    """Returns the exit code of a run that only shows what it would do; `findings`: something is lost."""
    return ExitCode.REFUSED if serious(problems) else ExitCode.FINDINGS if findings else ExitCode.CLEAN


def exit_code(plan: Plan, results: Sequence[StreamResult], *, changed: bool) -> int:
    """Returns the exit code that says what became of a plan.

    Args:
        plan: The plan.
        results: What became of its streams.
        changed: Something was to be done, not only compared.
    """
    failed = [result.error for result in results if result.error]
    if failed:
        code = max(error.exit_code for error in failed)
        # Refused means that nothing was changed; here some streams were.
        return ExitCode.FINDINGS if code == ExitCode.REFUSED and len(failed) < len(results) else code
    if any(result.findings for result in results):
        return ExitCode.FINDINGS
    return ExitCode.LOSS if plan.lossy and changed else ExitCode.CLEAN
