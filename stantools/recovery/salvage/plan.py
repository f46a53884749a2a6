"""Planning a salvage: everything is read once, nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from stantools.errors import RefusedError, StoreUnreadableError, UsageError
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.inspection.outcomes import ChannelOutcome
from stantools.inspection.runs import ChannelHistory, Generation, RecordRun, arrange, same_records
from stantools.inspection.survey import ChannelSurvey, SliceSurvey, stop_text, survey_slice
from stantools.inspection.survey_jobs import survey_channels
from stantools.inspection.verify import channel_verdict
from stantools.notation import counted, describe_ranges
from stantools.progress import Progress
from stantools.recovery.recovery_options import SalvageOptions
from stantools.recovery.salvage.model import (
    NEWEST,
    SPLIT,
    ChannelSalvage,
    DroppedData,
    DropReason,
    RecordCopy,
    RepairedMessage,
    SalvagePlan,
    Step,
)
from stantools.recovery.salvage.subscriptions import plan_subscriptions
from stantools.store.clientlog import ClientsState, salvage_clients
from stantools.store.directory import CLIENTS_FILE, SUBS_FILE, Datastore, possible_slices, size_of
from stantools.store.limits import is_channel_name
from stantools.store.logscan import LogDamageKind, LogState
from stantools.store.mapping import mapped
from stantools.store.ranges import Ranges
from stantools.store.serverinfo import find_identity
from stantools.store.sublog import SubsState, salvage_subs


@dataclass
class _ChannelFindings:
    """The scanned data of one channel, from any place in the store."""

    runs: list[RecordRun] = field(default_factory=list)  #: good records, those of the channel's own directory first
    rewrites: list[RepairedMessage] = field(default_factory=list)  #: messages whose record header must be recreated
    subs: SubsState | None = None  #: fold of its subs.dat
    outcome: ChannelOutcome | None = None  #: state of its messages by its directory
    renamed: ChannelOutcome | None = None  #: state of its messages by a directory under another name
    #: Sequences that only the index of a slice names, by the number of the slice.
    named: list[tuple[int, Ranges]] = field(default_factory=list)


def plan_salvage(
    store: Datastore,
    options: SalvageOptions | None = None,
    *,
    progress: Progress | None = None,
    surveys: Iterable[ChannelSurvey] | None = None,
) -> SalvagePlan:
    """Reads a store in any state and plans a new one.

    `progress` is called with bytes. `surveys` are those of the channels of `channels_to_survey`, in that order, if
    they exist already. Raises `RefusedError` if the cluster id is lost and not among the options, or the gaps are
    too big to be filled; `UsageError` if there is no such generation.
    """
    options = options or SalvageOptions()
    store = store.checking
    server, note = find_identity(store, options.cluster_id)
    plan = SalvagePlan(store.path, store.crc, options, server, note)
    clients = _clients(store, plan)
    plan.clients = list(clients.clients.values())
    sources: dict[bytes, _ChannelFindings] = {}
    foreign: list[RecordRun] = []
    strays, inner = _root_strays(store, plan), []
    if surveys is None:
        names = channels_to_survey(store, options.patterns)
        surveys = survey_channels(store, names, workers=options.workers, archived=options.archived, progress=progress)
    for survey in surveys:
        foreign += _collect(store, survey, sources, plan)
        _read_subs(survey, sources, plan)
        inner += [(survey.files.raw_name, stray) for stray in survey.strays]
    _restore_names(sources, foreign, plan)
    for run in foreign:
        sources.setdefault(run.subject, _ChannelFindings()).runs.append(run)
    for name, stray in [*inner, *strays]:
        _add_stray(store, name, stray, sources, plan)
    taken = set(sources)
    for name, source in sorted(sources.items()):
        _plan_channel(plan, name, source, set(clients.clients), taken)
    plan.channels.sort(key=lambda channel: channel.name)
    return plan


def _restore_names(sources: dict[bytes, _ChannelFindings], foreign: list[RecordRun], plan: SalvagePlan) -> None:
    """Moves subscriptions with the messages of a renamed channel directory; a copied directory becomes no channel.

    A renamed directory's messages all belong to one other channel without a directory of its own; for a copied one,
    that channel has a directory.
    """
    subjects: dict[bytes, set[bytes]] = {}
    for run in foreign:
        assert run.slice.data is not None
        subjects.setdefault(os.fsencode(run.slice.data.parent.name), set()).add(run.subject)
    for directory, names in subjects.items():
        source = sources[directory]
        (subject, *others) = names
        if source.runs or source.rewrites or others:
            continue
        name, channel = os.fsdecode(directory), os.fsdecode(subject)
        del sources[directory]
        if subject not in sources:
            source.outcome, source.renamed = None, source.outcome
            sources[subject] = source
            plan.changes.append(f"{name}: its subscriptions went to channel {channel!r} with its messages")
            continue
        sources[subject].renamed = source.outcome
        reason = f"a copy of channel {channel!r}, which its messages name: it does not become a channel"
        if source.subs and len(source.subs.subscriptions):
            reason += f", and its {counted(len(source.subs.subscriptions), 'subscription', 'is/are')} left out"
        plan.dropped.append(DroppedData(name, -1, 0, reason, fate=DropReason.LEFT_OUT))


def _clients(store: Datastore, plan: SalvagePlan) -> ClientsState:
    if store.clients is None:
        plan.changes.append(f"{CLIENTS_FILE} is missing: no clients are known")
        return ClientsState()
    try:
        with mapped(store.clients) as buffer:
            state = salvage_clients(buffer, plan.crc)
    except StoreUnreadableError as error:
        plan.dropped.append(DroppedData(CLIENTS_FILE, -1, 0, error.message))
        return ClientsState()
    _leave_log_damage(plan, CLIENTS_FILE, state)
    return state


def _leave_log_damage(plan: SalvagePlan, file: str, state: LogState) -> None:
    for damage in state.damages:
        if damage.repaired:
            plan.changes.append(
                f"{file}: a record at offset {damage.offset} was kept despite its damage: {damage.detail}"
            )
        else:
            held_nothing = damage.kind in (LogDamageKind.ZEROS, LogDamageKind.VERSION)
            fate = DropReason.LEFT_OUT if held_nothing else DropReason.MISSING
            plan.dropped.append(DroppedData(file, damage.offset, damage.length, damage.detail, fate=fate))


def _root_strays(store: Datastore, plan: SalvagePlan) -> list[tuple[bytes, SliceSurvey]]:
    """Returns the files in the root that prove to be slices; the others are recorded as left out."""
    surveys = [survey_slice(each, b"", plan.crc) for each in possible_slices(store.foreign)]
    found = [survey for survey in surveys if survey.runs]
    taken = {survey.files.data for survey in found}
    for path in (*store.leftovers, *store.foreign, *store.raft_logs):
        if path in taken:
            continue
        plan.dropped.append(
            DroppedData(path.name, -1, size_of(path), "not part of the store", fate=DropReason.LEFT_OUT)
        )
    return [(b"", survey) for survey in found]


def _add_stray(
    store: Datastore, directory: bytes, stray: SliceSurvey, sources: dict[bytes, _ChannelFindings], plan: SalvagePlan
) -> None:
    """Takes the messages that are only in a slice under another name."""
    assert stray.files.data is not None
    file = str(stray.files.data.relative_to(store.path))
    for run in stray.runs:
        name = run.subject if is_channel_name(os.fsdecode(run.subject)) or not directory else directory
        source = sources.setdefault(name, _ChannelFindings())
        have = Ranges.union(each.sequences for each in source.runs)
        alone, there = run.sequences - have, run.sequences & have
        for each in source.runs:
            if both := there & each.sequences:
                there -= same_records(run, each, both, plan.crc)
        if there:
            reason = "other messages have these sequences in the channel's slices"
            plan.dropped.append(DroppedData(file, run.start, run.end - run.start, reason, there))
        if same := run.sequences - alone - there:
            reason = "the same messages are kept from another place"
            plan.dropped.append(
                DroppedData(file, run.start, run.end - run.start, reason, same, fate=DropReason.LEFT_OUT)
            )
        if alone:
            source.runs.append(replace(run, sequences=alone))
            plan.changes.append(
                f"{file}: sequences {describe_ranges(alone)} of channel {os.fsdecode(name)!r} are in no slice, and were"
                " taken from this file, which servers do not read"
            )
    if directory:
        _leave_slice_damage(store, stray, sources[directory], plan)


def channels_to_survey(store: Datastore, patterns: Sequence[str] = ()) -> list[str]:
    """Returns the channels that a salvage reads; the server skips channels that are symbolic links."""
    linked = Datastore(store.path, channel_names=[path.name for path in store.symlinks])
    return [*store.matching(patterns), *linked.matching(patterns)]


def _collect(
    store: Datastore, survey: ChannelSurvey, sources: dict[bytes, _ChannelFindings], plan: SalvagePlan
) -> list[RecordRun]:
    """Assigns a directory's records to their channels; returns the runs of other channels."""
    files = survey.files
    if survey.error:
        plan.dropped.append(DroppedData(files.name, -1, 0, survey.error))
    if not (survey.slices or files.subs or survey.strays):
        if not survey.error:
            plan.dropped.append(
                DroppedData(files.name, -1, 0, "the directory holds no channel", fate=DropReason.LEFT_OUT)
            )
        return []
    source = sources.setdefault(files.raw_name, _ChannelFindings())
    foreign: list[RecordRun] = []
    for run in survey.runs():
        if run.subject == files.raw_name or not is_channel_name(os.fsdecode(run.subject)):
            source.runs.append(run)
        else:
            foreign.append(run)
            assert run.slice.data is not None
            where = f"{run.slice.data.relative_to(store.path)} from offset {run.start}"
            channel = os.fsdecode(run.subject)
            plan.changes.append(f"{where}: {counted(run.count, 'message')} went to the right channel, {channel!r}")
    for one in survey.slices:
        _leave_slice_damage(store, one, source, plan)
    slices = (*survey.slices, *survey.lone_indexes)
    source.named = [(each.files.number, each.index.dangling) for each in slices if each.index.dangling]
    taken = {stray.files.data for stray in survey.strays}
    for path in (*files.misnamed, *files.foreign, *files.directories):
        if path in taken:
            continue
        misnamed = path in files.misnamed
        reason = "its slice number cannot be read, and it holds no message" if misnamed else "not part of the store"
        fate = DropReason.UNKNOWN if misnamed else DropReason.LEFT_OUT
        plan.dropped.append(DroppedData(str(path.relative_to(store.path)), -1, size_of(path), reason, fate=fate))
    if not plan.options.archived:
        for one_slice in files.archived:
            reason = "archived; --archived includes it"
            plan.dropped.append(
                DroppedData(f"{files.name}/{one_slice.name}", -1, one_slice.data_size, reason, fate=DropReason.LEFT_OUT)
            )
    return foreign


def _leave_slice_damage(store: Datastore, survey: SliceSurvey, source: _ChannelFindings, plan: SalvagePlan) -> None:
    assert survey.files.data is not None
    file = str(survey.files.data.relative_to(store.path))
    if survey.error:
        plan.dropped.append(DroppedData(file, -1, survey.files.data_size, survey.error))
        return
    if survey.header_error and survey.size < FILE_HEADER_SIZE:
        plan.dropped.append(DroppedData(file, 0, survey.size, survey.header_error, fate=DropReason.LEFT_OUT))
    for neighbours in survey.damages:
        damage = neighbours.damage
        if damage.repair and damage.repair.message.sequence:
            source.rewrites.append(RepairedMessage(survey.files.data, damage, damage.repair))
        else:
            # Zeros and torn ends between consecutive messages hold no data; lost messages are counted by sequence.
            reason = f"{damage.kind}: {stop_text(damage.stop)}"
            plan.dropped.append(DroppedData(file, damage.offset, damage.length, reason, fate=DropReason.LEFT_OUT))


def _read_subs(survey: ChannelSurvey, sources: dict[bytes, _ChannelFindings], plan: SalvagePlan) -> None:
    path = survey.files.subs
    if survey.files.raw_name not in sources:
        return
    source = sources[survey.files.raw_name]
    if path is None:
        if survey.end is not None or any(survey.own_runs()):
            reason = "the file is not there, and nothing else knows the durables of the channel"
            plan.dropped.append(DroppedData(f"{survey.files.name}/{SUBS_FILE}", -1, 0, reason, fate=DropReason.MISSING))
    else:
        file = f"{survey.files.name}/{path.name}"
        try:
            with mapped(path, snapshot=survey.files.subs_seen) as buffer:
                source.subs = salvage_subs(buffer, plan.crc)
        except StoreUnreadableError as error:
            plan.dropped.append(DroppedData(file, -1, 0, error.message))
        else:
            _leave_log_damage(plan, file, source.subs)
    source.outcome = channel_verdict(survey, arrange(survey.own_runs(), plan.crc), plan.crc, source.subs).outcome


def _plan_channel(
    plan: SalvagePlan, name: bytes, source: _ChannelFindings, known_clients: set[bytes], taken: set[bytes]
) -> None:
    history = arrange(source.runs, plan.crc)
    text = os.fsdecode(name)
    for piece in history.duplicates:
        assert piece.run.slice.data is not None
        where = str(piece.run.slice.data.relative_to(plan.source))
        length = piece.run.end - piece.run.start
        reason = "the same messages are kept from another place"
        plan.dropped.append(
            DroppedData(where, piece.run.start, length, reason, piece.sequences, fate=DropReason.LEFT_OUT)
        )
    kept = _choose(plan, text, history)
    subs = source.subs or SubsState()
    for generation, is_main in kept:
        target = ChannelSalvage(name, stored_name=name)
        if not is_main:
            target.name = _generation_name(name, taken)
            target.origin = f"an older generation of {text!r}"
            plan.changes.append(
                f"{text}: {generation.sequences.count()} older messages went to channel {os.fsdecode(target.name)!r} "
                "(encrypted payloads stay readable with the old channel name only)"
            )
        rewrites = source.rewrites if is_main else []
        target.steps = _steps(plan, text, generation, rewrites)
        target.sequences = Ranges.union(step.sequences for step in target.steps)
        target.last_known = target.sequences.last
        if plan.options.fill_gaps:
            _check_filling(target)
            target.filled = target.gaps
        if is_main:
            _note_missing(plan, target, source)
            # Of several generations, only entries of the newest slice or later ones can belong to the newest.
            several = len(history.generations) > 1
            newest = max((p.run.slice.number for p in generation.pieces), default=0) if several else 0
            named = (ranges.last for number, ranges in source.named if number >= newest)
            target.last_known = max((target.last_known, *named))
            last = target.last_known if plan.options.keep_positions else target.sequences.last
            decided = plan_subscriptions(subs, known_clients, last)
            target.subscriptions = decided.subscriptions
            plan.changes += [f"{text}: {change}" for change in decided.changes]
            plan.dropped += [
                DroppedData(f"{text}/subs.dat", -1, 0, reason, fate=DropReason.LEFT_OUT) for reason in decided.dropped
            ]
        plan.channels.append(target)
        plan.bytes += target.size


def _note_missing(plan: SalvagePlan, target: ChannelSalvage, source: _ChannelFindings) -> None:
    """Records the messages of a channel that were missing before, and its unknown contents."""
    name = os.fsdecode(target.name)
    outcome = (source.outcome or ChannelOutcome(name)).with_directory(target.sequences, source.renamed)
    target.missing, target.archived, target.skipped = outcome.missing, outcome.archived, outcome.gaps
    if gone := outcome.missing - outcome.gaps:
        plan.dropped.append(DroppedData(name, -1, 0, "the messages are damaged or gone", gone, DropReason.MISSING))
    if outcome.gaps:
        reason = "whole records leave these sequences out"
        plan.dropped.append(DroppedData(name, -1, 0, reason, outcome.gaps, DropReason.GAP))
    for end in outcome.unknown:
        target.unknown.append(end.sentence(name))
        if end.suspected:
            plan.dropped.append(DroppedData(name, -1, 0, end.sentence(name), fate=DropReason.UNKNOWN))


def _check_filling(target: ChannelSalvage) -> None:
    """Refuses to fill a gap that only an absurd sequence can have made."""
    if not target.fillable:
        raise RefusedError(
            f"channel {os.fsdecode(target.name)!r}: filling its gaps would take {target.gaps.count()} empty messages "
            f"for {target.sequences.count()} existing ones ({target.sequences.first} to {target.sequences.last})",
            "salvage without --fill-gaps: consumers skip missing sequences",
        )


def _choose(plan: SalvagePlan, channel: str, history: ChannelHistory) -> list[tuple[Generation, bool]]:
    """Chooses the generations to keep; the flag marks the one that keeps the channel's name."""
    generations = history.generations or [Generation()]
    wanted = plan.options.generation
    if len(generations) == 1 or wanted == SPLIT:
        return [(g, g is generations[-1]) for g in generations]
    if wanted == NEWEST:
        chosen = generations[-1]
    else:
        if not wanted.isdecimal() or not 1 <= int(wanted) <= len(generations):
            raise UsageError(
                f"channel {channel!r} has {len(generations)} generations, there is no generation {wanted!r}",
                f"give a number from 1 (oldest) to {len(generations)}, `{NEWEST}` or `{SPLIT}`",
            )
        chosen = generations[int(wanted) - 1]
    for generation in generations:
        if generation is not chosen:
            reason = f"another generation was chosen ({wanted})"
            plan.dropped.append(DroppedData(channel, -1, 0, reason, generation.sequences))
    return [(chosen, True)]


def _generation_name(name: bytes, taken: set[bytes]) -> bytes:
    """Makes a channel name for an older generation."""
    number = 1
    while (candidate := name + b".generation-%d" % number) in taken:
        number += 1
    taken.add(candidate)
    return candidate


def _steps(plan: SalvagePlan, channel: str, generation: Generation, rewrites: Iterable[RepairedMessage]) -> list[Step]:
    """Sorts copies and rewrites by sequence."""
    have = generation.sequences
    extra: dict[int, RepairedMessage] = {}
    for rewrite in rewrites:
        if rewrite.sequence not in have and rewrite.sequence not in extra:
            extra[rewrite.sequence] = rewrite
    steps: list[Step] = []
    waiting = sorted(extra)
    for piece in generation.ordered():
        left = piece.sequences
        if 0 in left:
            plan.dropped.append(DroppedData(channel, -1, 0, "a message with sequence 0", Ranges.of([(0, 0)])))
            left -= Ranges.of([(0, 0)])
        while waiting and waiting[0] < left.last:
            sequence = waiting.pop(0)
            before = left & Ranges.of([(0, sequence)])
            if before:
                steps.append(RecordCopy(piece.run, before))
                left -= before
            steps.append(extra[sequence])
        if left:
            steps.append(RecordCopy(piece.run, left))
    steps += [extra[sequence] for sequence in waiting]
    return steps
