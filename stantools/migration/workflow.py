"""Conducting a migration: what stands in its way, the plan file, the work, and what became of it.

What the command line does stage by stage, and the browser step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stantools.errors import ExitCode, RefusedError, StantoolsError
from stantools.escaping import shell_word
from stantools.format.crc import Crc
from stantools.migration.journal import Journal, StreamResult, Watch, journal_path, remembered_streams
from stantools.migration.plan.checks import find_changes, find_problems
from stantools.migration.plan.model import Level, Note, Plan, Way
from stantools.migration.plan.planfile import read_plan, write_plan
from stantools.migration.prepared import prepare
from stantools.migration.source import SourceOptions, StoreSource, open_source
from stantools.migration.targets.loading import ApplyOptions
from stantools.migration.targets.target import Destination
from stantools.notation import counted
from stantools.progress import Progress
from stantools.store.directory import Datastore


def read_source(store: Datastore, crc: Crc, options: SourceOptions, *, progress: Progress | None = None) -> StoreSource:
    """Reads a store and says what can be migrated from it; tries the key on it, unless payloads may stay encrypted.

    Args:
        store: The store, in any state; nothing in it is changed.
        crc: Its CRC.
        options: What is taken of it.
        progress: Told the number of bytes as they are read.

    Raises:
        UsageError: There is no such generation, or the key is empty.
        DecryptError: The key is not that of the store.
        StoreUnreadableError: It cannot be read.
    """
    source = open_source(store, crc, options, progress=progress)
    if options.key is not None and not options.keep_encrypted:
        for channel in source.channels:
            channel.check_key()
    return source


def default_plan_file(store: Path) -> Path:
    """Returns where a plan is written if nothing else is said: beside where the user is, called like the store.

    Most stores are called alike, so the folder that one lies in is a part of the name. A plan that is there under the
    name that earlier versions gave it, without the folder, is taken if it is of this store.
    """
    place = store.absolute()
    earlier = Path(f"{place.name}.migration.yaml")
    try:
        if earlier.exists() and Path(read_plan(earlier).source.path).absolute() == place:
            return earlier
    except StantoolsError:
        pass  # whatever it is, it is not in the way
    return Path("-".join(filter(None, (place.parent.name, place.name))) + ".migration.yaml")


def check_plan_file(file: Path, plan: Plan) -> None:
    """Takes care that a plan that somebody may have edited is not overwritten.

    Raises:
        RefusedError: There is another one.
    """
    if file.exists() and read_plan(file).digest != plan.digest:
        raise RefusedError(
            f"{file}: is there already, and is another plan",
            f"`stantools migrate apply {shell_word(str(file))}` carries that one out; or choose another file with "
            "--plan, or remove it",
        )


def keep_plan(file: Path, plan: Plan) -> None:
    """Writes the plan, unless it is there already: then somebody may have made notes in it.

    Raises:
        StoreUnwritableError: It cannot be written.
    """
    begun = journal_path(file).exists()
    if not file.exists() or (not begun and read_plan(file).target.places != plan.target.places):
        write_plan(file, plan)


def judge(
    plan: Plan,
    source: StoreSource,
    target: Destination,
    options: ApplyOptions | None,
    *,
    keep_encrypted: bool,
    file: Path | None = None,
) -> list[Note]:
    """Returns what stands in the way of a plan, and what else should be known.

    Args:
        plan: The plan.
        source: The store that it is for.
        target: Where it goes.
        options: How it would be carried out; without, the target is not asked.
        keep_encrypted: Encrypted payloads may go along as they are stored.
        file: The plan file, whose journal tells what an earlier run has done.

    Raises:
        StantoolsError: The target cannot be asked.
    """
    notes = [*find_problems(plan), *find_changes(plan, source)]
    if not plan.source.decrypted and not keep_encrypted:
        notes += _sealed(plan, source)
    if options is not None and not serious(notes):
        begun = remembered_streams(file) if file else {}
        notes += target.problems(prepare(plan, source), options, begun)
    return [note for note in notes if note.level is not Level.INFO]


def serious(notes: Sequence[Note]) -> list[Note]:
    """Returns the notes that stand in the way."""
    return [note for note in notes if note.level is Level.PROBLEM]


def _sealed(plan: Plan, source: StoreSource) -> Iterator[Note]:
    for stream in plan.streams:
        for part in stream.parts:
            channel = source.channel(part.channel)
            if channel is not None and channel.encrypted:
                yield Note(
                    Level.PROBLEM,
                    part.channel,
                    "its payloads look encrypted, and there is no key: nobody could read them in the stream",
                    "give the server's key with --encryption-key-env or --encryption-key-file, or say --keep-encrypted",
                )


def refuse_problems(problems: Sequence[Note]) -> None:
    """Stops where something stands in the way.

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
    """Stops where something stands in the way, or is lost without consent.

    Raises:
        RefusedError: Always in these cases.
    """
    refuse_problems(problems)
    if plan.lossy and not accept_loss:
        lost = counted(plan.lost, "message", "is/are") if plan.lost else "something is"
        raise RefusedError(
            f"nothing was changed: the store is damaged, {lost} lost (see above)",
            "--accept-loss migrates what is intact; `stantools verify` says more",
        )


def open_journal(file: Path, plan: Plan) -> Journal:
    """Opens the journal beside a plan file, to be closed by its block.

    Raises:
        RefusedError: Another run has it open, or it was written for another plan or target.
        StoreUnreadableError: It cannot be read, or is no journal.
        StoreUnwritableError: It cannot be written.
    """
    return Journal(file, plan.digest, str(plan.target))


def amount(plan: Plan, options: ApplyOptions) -> int:
    """Returns how many messages are dealt with when a plan is carried out, those that are only compared included."""
    return plan.messages * (2 if options.prove else 1)


def carry_out(
    plan: Plan, source: StoreSource, target: Destination, journal: Journal, options: ApplyOptions, watch: Watch
) -> list[StreamResult]:
    """Makes every stream what the plan says, and proves it.

    Interrupted, it leaves streams that are complete; what was under way is gone on with, or begun again, by the next
    run with the same journal.

    Args:
        plan: The plan.
        source: The store that it is for.
        target: Where it goes.
        journal: The journal beside the plan file.
        options: How.
        watch: Told how far each stream is.
    """
    return target.apply(prepare(plan, source), journal, options, watch)


def published(plan: Plan, file: Path) -> set[str]:
    """Returns the streams that were published, wholly or in part, as far as the journal knows."""
    if plan.way is Way.PUBLISH:
        return {stream.name for stream in plan.streams}
    return {name for name, entry in remembered_streams(file).items() if entry.get("way") == Way.PUBLISH}


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
