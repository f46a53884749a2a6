"""Compact: the same store without what is dead in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stantools.errors import ExitCode, UsageError
from stantools.notation import describe_ranges, format_size, parse_duration, parse_size
from stantools.recovery.compact import (
    ChannelPlan,
    CompactionPlan,
    CompactionResult,
    CompactOptions,
    apply_compaction,
    compact_in_place,
    finish_replacement,
    plan_compaction,
)
from stantools.recovery.compact.apply import room_needed
from stantools.recovery.place import check_outside, check_room, free_bytes
from stantools.store.atomic import absolute, check_exchangeable, check_vacant
from stantools.store.limits import DEFAULT_SLICES, UNLIMITED, PatternLimits, SliceLimits, StoreLimits
from stantools.store.locks import check_not_in_use
from tui.cells import counted, name_text, number
from tui.jobs import Job
from tui.plans.form import Field, Form, field_of, flag, optional, path, whole_number
from tui.plans.wizard import Outcome, Preview, Source, Wizard, attempt, look_for_uses
from tui.rows import Column, count_column

_COLUMNS: Sequence[Column[ChannelPlan]] = (
    Column("channel", 15, lambda channel: name_text(channel.files.raw_name), grows=True),
    count_column("kept", 10, lambda channel: channel.messages, zero=True),
    Column("sequences", 18, lambda channel: describe_ranges(channel.kept, 4), grows=True),
    count_column("dropped", 8, lambda channel: channel.skip, "warn"),
    count_column("slices", 6, lambda channel: len(channel.slices), zero=True),
    count_column("subs", 4, lambda channel: channel.subscriptions),
    count_column("orphans", 7, lambda channel: len(channel.orphans), "warn"),
)


class CompactWizard(Wizard):
    """Writes a store anew, without what no server would show any more."""

    VERB = "compact"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.form = Form(
            Field("out", "where to write the compacted store: a directory that does not exist", parse=path),
            flag("in-place", "put the result in the place of the store, which is kept beside it; out is not used"),
            Field("backup", "with in-place: what the old store is called then; its name with the time, if empty"),
            Field("max-msgs", "the server's -mm: leave out what it has removed", parse=optional(whole_number)),
            Field("max-bytes", "the server's -mb, such as 64MB", parse=optional(parse_size)),
            Field("max-age", "the server's -ma, such as 72h", parse=optional(parse_duration)),
            Field("slice-msgs", "messages of a slice; the server's option", parse=optional(whole_number)),
            Field("slice-bytes", "bytes of a slice; 64MB if no slice limit is given", parse=optional(parse_size)),
            Field("slice-age", "time that a slice covers; the server's option", parse=optional(parse_duration)),
            field_of(CompactOptions, "drop_orphans", "leave out plain subscriptions of clients that are gone"),
            field_of(CompactOptions, "accept_loss", "go on although slices or logs are missing already"),
            flag("force", "go on although a server seems to be using the store"),
        )
        self.form.fields["out"].value = source.beside(".compacted")
        self._plan: CompactionPlan | None = None

    @property
    def changes_store(self) -> bool:
        """It is exchanged for the new one, if that is asked for."""
        return self.form.flag("in-place")

    def command(self) -> list[str]:
        """Returns the command line that does the same."""
        without = {"out"} if self.changes_store else {"in-place", "backup"}
        words = ["stantools", self.VERB, os.fspath(self.source.path), *self.form.words(without=without)]
        return [*words, *self.source.reading_words(), *(["--yes"] if self.changes_store else [])]

    def preview(self, job: Job[Preview]) -> Preview:
        """Reads and checks the store; see `Wizard.preview`."""
        form, source = self.form, self.source
        self._plan = None
        options = form.taken(CompactOptions, limits=self._limits(), slices=self._slices(), workers=source.workers)
        target = self._target()
        preview = Preview(columns=_COLUMNS)
        store = source.open()
        job.begin_phase("looking for a server")
        look_for_uses(
            source, preview, force=form.flag("force"), warning="what is being written may not be in the result"
        )
        job.begin_phase("checking", store.data_size(store.channel_names))
        plan = plan_compaction(store, source.crc, options, progress=job.advance)
        room = partial(check_room, target, room_needed(plan))
        if self.changes_store:
            attempt(preview, partial(check_exchangeable, target), room)
        else:
            attempt(preview, partial(check_outside, source.path, target), partial(check_vacant, absolute(target)), room)
        self._plan = plan
        self._describe(plan, target, preview)
        return preview

    def _limits(self) -> StoreLimits | None:
        values = [self.form.value(name) for name in ("max-msgs", "max-bytes", "max-age")]
        if values == [None, None, None]:
            return None
        return PatternLimits(*values).of_store(UNLIMITED)

    def _slices(self) -> SliceLimits:
        values = [self.form.value(name) for name in ("slice-msgs", "slice-bytes", "slice-age")]
        return DEFAULT_SLICES if values == [None, None, None] else SliceLimits(*(value or 0 for value in values))

    def _target(self) -> Path:
        if self.changes_store:
            return absolute(self.source.path)
        out: Path = self.form.needed("out", "where is the result to go? Name a directory, or choose in-place")
        return out

    def _backup(self) -> Path | None:
        text = self.form.text("backup")
        return path(text) if text else None

    def _describe(self, plan: CompactionPlan, target: Path, preview: Preview) -> None:
        dropped = sum(channel.skip for channel in plan.channels)
        kept = sum(channel.messages for channel in plan.channels)
        saved = max(plan.bytes_before - plan.bytes_after, 0)
        text = f"{counted(kept, 'message')} in {counted(len(plan.channels), 'channel')} would be kept"
        text += f", {number(dropped)} behind the limits left out" if dropped else ""
        preview.verdict = (f"{text}; about {format_size(saved)} smaller", "warn" if dropped else "good")
        preview.facts = [
            ("in place of" if self.changes_store else "to", name_text(os.fspath(target))),
            ("now", format_size(plan.bytes_before)),
            ("then", f"about {format_size(plan.bytes_after)}"),
        ]
        attempt(preview, lambda: preview.facts.append(("free", format_size(free_bytes(target)))))
        preview.rows = plan.channels

    def question(self) -> str:
        """Says what is going to be done."""
        assert self._plan is not None
        store = name_text(os.fspath(self.source.path))
        if self.changes_store:
            backup = self._backup()
            kept = name_text(os.fspath(backup)) if backup else f"{self.source.name}.before-compact-… beside it"
            return f"{store} is written anew and exchanged; the old one is kept as {kept}."
        return f"{store} is written anew to {name_text(self.form.text('out'))}, and only read itself."

    def run(self, job: Job[Outcome]) -> Outcome:
        """Writes the compacted store; see `Wizard.run`."""
        plan, force = self._plan, self.form.flag("force")
        assert plan is not None
        if self.changes_store and (finished := finish_replacement(self.source.path)):
            raise UsageError(
                f"an interrupted run was finished first; the old store is {finished}", "go back and look at it anew"
            )
        if not self.changes_store:
            job.begin_phase("looking for a server")
            check_not_in_use(self.source.path, force=force)
        job.begin_phase("writing", plan.bytes_before)
        if self.changes_store:
            result = compact_in_place(plan, backup=self._backup(), force=force, progress=job.advance)
        else:
            result = apply_compaction(plan, self._target(), progress=job.advance)
        return _outcome(plan, result)


def _outcome(plan: CompactionPlan, result: CompactionResult) -> Outcome:
    outcome = Outcome(columns=_COLUMNS, rows=plan.channels, code=ExitCode.CLEAN)
    outcome.verdict = ("the compacted store was read back, and is what was planned", "good")
    outcome.meaning = "done"
    outcome.facts = [
        ("compacted store", name_text(os.fspath(result.path))),
        ("holds", f"{counted(result.messages, 'message')} in {counted(result.slices, 'slice')}"),
        ("size", f"{format_size(result.bytes)}, before {format_size(plan.bytes_before)}"),
    ]
    if result.backup is not None:
        outcome.facts.append(("the old store", name_text(os.fspath(result.backup))))
        outcome.changed = True
        outcome.next_text = "start the server; remove the old store when all is well"
    else:
        outcome.opens = result.path
        outcome.next_text = "open the new store (o); start the server on it"
    return outcome
