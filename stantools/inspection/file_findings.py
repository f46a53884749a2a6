"""Findings about a channel's slices, from its survey, and about clients.dat and subs.dat, from their tolerant folds."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from itertools import compress, pairwise
from pathlib import Path
from typing import NamedTuple

from stantools.format.layout import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, RECORD_HEADER_SIZE, ScanStop
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding, Severity
from stantools.inspection.indexcheck import IndexReport
from stantools.inspection.runs import ChannelHistory, RecordRun, RunPart
from stantools.inspection.survey import ChannelSurvey, NeighbourSequences, SliceSurvey, stop_text
from stantools.notation import counted, describe_ranges, describe_sequences
from stantools.store.limits import is_channel_name
from stantools.store.logscan import LogDamageKind, LogState
from stantools.store.ranges import Ranges
from stantools.store.resync import DamageKind
from stantools.store.sublog import STATUSES, SubsState, SubStatus

_CODES = {
    DamageKind.TORN: "slice-torn",
    DamageKind.ZEROS: "slice-zeros",
    DamageKind.PAYLOAD: "slice-bad-payload",
    DamageKind.LENGTH: "slice-bad-length",
    DamageKind.CRC_FIELD: "slice-bad-crc-field",
    DamageKind.UNDECODABLE: "slice-undecodable",
    DamageKind.GARBAGE: "slice-garbage",
}
#: Single disagreements of an index that are listed; more are summed up.
_MAX_LISTED = 20
_RANGES_SHOWN = 8
#: For `bytes.translate`: whether a number of `STATUSES` means that a required client is missing.
_GONE = bytes(each in (SubStatus.GHOST, SubStatus.ORPHAN) for each in STATUSES).ljust(256, b"\0")


def slice_findings(root: Path, survey: ChannelSurvey) -> Iterator[Finding]:
    channel = survey.files.name
    if survey.error:
        yield finding("file-unreadable", survey.error, file=channel, channel=channel)
    for path in survey.files.misnamed:
        text = "the part between `msgs.` and `.dat` is not a number of 64 bits"
        yield finding("slice-name", text, file=_relative(root, path), channel=channel)
    for stray in survey.strays:
        yield from _stray(root, survey, stray)
    for one in survey.slices:
        yield from _one_slice(root, channel, one)
    yield from _missing_slices(survey)
    for lone in survey.lone_indexes:
        assert lone.files.index is not None
        yield finding(
            "index-without-data",
            f"its data file is gone; it named {_sequences(lone.index.dangling)}",
            file=_relative(root, lone.files.index),
            channel=channel,
        )


def _stray(root: Path, survey: ChannelSurvey, stray: SliceSurvey) -> Iterator[Finding]:
    """Iterates over the findings about a slice under another name, unless the other slices have all of its messages."""
    assert stray.files.data is not None
    file, channel = _relative(root, stray.files.data), survey.files.name
    runs = [run for run in stray.runs if run.subject == survey.files.raw_name]
    alone = Ranges.union(run.sequences for run in runs) - survey.in_slices
    if alone or len(runs) < len(stray.runs):
        what = (
            f"sequences {describe_ranges(alone.pairs(), _RANGES_SHOWN)} of it are in no slice"
            if alone
            else "messages of other channels"
        )
        count = sum(run.count for run in stray.runs)
        text = f"it holds {_count(count)} under a name that the server does not read: {what}"
        yield finding("slice-stray", text, file=file, channel=channel, seq=alone.first or None)
    for neighbours in stray.damages:
        yield _damage(file, channel, neighbours)


class MissingSlices(NamedTuple):
    """Slices whose numbers are missing, together with messages between their neighbours."""

    low: int
    high: int
    first: int  #: first missing sequence
    last: int  #: last missing sequence

    @property
    def numbers(self) -> str:
        """The numbers in words."""
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


def missing_slices(survey: ChannelSurvey) -> Iterator[MissingSlices]:
    """Iterates over the gaps in the numbers of a channel's slices where messages are missing as well."""
    filled = [one for one in survey.slices if one.runs]
    for one, two in pairwise(filled):
        low, high = one.files.number + 1, two.files.number - 1
        if low <= high and one.runs[-1].last + 1 < two.runs[0].first:
            yield MissingSlices(low, high, one.runs[-1].last + 1, two.runs[0].first - 1)


def _missing_slices(survey: ChannelSurvey) -> Iterator[Finding]:
    channel = survey.files.name
    archived = {each.number for each in survey.files.archived}
    for gap in missing_slices(survey):
        text = f"slice {gap.numbers}, sequences {gap.first}-{gap.last}"
        if archived.issuperset(range(gap.low, gap.high + 1)):
            text += "; it is archived, `--archived` reads it"
        yield finding("slice-missing", text, file=channel, channel=channel, seq=gap.first)


def _one_slice(root: Path, channel: str, survey: SliceSurvey) -> Iterator[Finding]:
    assert survey.files.data is not None
    file = _relative(root, survey.files.data)
    if survey.error:
        yield finding("file-unreadable", survey.error, file=file, channel=channel)
        return
    if survey.header_error:
        size = min(survey.size, FILE_HEADER_SIZE)
        yield finding("file-version", survey.header_error, file=file, offset=0, length=size, channel=channel)
    for neighbours in survey.damages:
        yield _damage(file, channel, neighbours)
    yield from _index(root, channel, survey)


def _damage(file: str, channel: str, neighbours: NeighbourSequences) -> Finding:
    damage = neighbours.damage
    code = _CODES[damage.kind]
    if damage.stop == ScanStop.DANGLING and damage.length == RECORD_HEADER_SIZE:
        code = "slice-dangling-header"
    text = f"{counted(damage.length, 'byte')} from offset {damage.offset}: {stop_text(damage.stop)}"
    if damage.stop == ScanStop.BAD_CRC and damage.computed_crc:
        text += f" (stored 0x{damage.stored_crc:08x}, computed 0x{damage.computed_crc:08x})"
    if where := _where(neighbours):
        text += f"; {where}"
    if damage.repair:
        text += "; its message is proven and can be kept"
    return finding(
        code, text, file=file, offset=damage.offset, length=damage.length, channel=channel, seq=neighbours.sequence
    )


def _where(neighbours: NeighbourSequences) -> str:
    before, after = neighbours.before, neighbours.after
    if neighbours.sequence is not None:
        return f"sequence {neighbours.sequence}"
    if before and after:
        return f"between sequences {before} and {after}"
    return f"after sequence {before}" if before else f"before sequence {after}" if after else ""


def _index(root: Path, channel: str, survey: SliceSurvey) -> Iterator[Finding]:
    assert survey.files.data is not None
    report = survey.index
    file = _relative(root, survey.files.index or survey.files.data.with_name(f"msgs.{survey.files.number}.idx"))
    if survey.index_error:
        yield finding("file-unreadable", survey.index_error, file=file, channel=channel)
        return
    if not report.present:
        if survey.runs or survey.damages:
            yield finding("index-missing", f"the index is missing; {_rebuild(survey)}", file=file, channel=channel)
        return
    if report.header_error:
        size = min(report.size, FILE_HEADER_SIZE)
        yield finding("file-version", report.header_error, file=file, offset=0, length=size, channel=channel)
    elif report.size == FILE_HEADER_SIZE and survey.size > FILE_HEADER_SIZE:
        text = f"the index holds only its file version; {_rebuild(survey)}"
        yield finding("index-empty", text, file=file, channel=channel)
        return
    if report.stop != ScanStop.END:
        text = f"{report.count} good records, then {_index_stop(report)}"
        yield finding(
            "index-damaged", text, file=file, offset=report.end, length=report.size - report.end, channel=channel
        )
    for mismatch in report.mismatches[:_MAX_LISTED]:
        pairs = ", ".join(
            f"{name} is {index}, in the data {data}"
            for name, index, data in zip(mismatch.fields, mismatch.index, mismatch.data, strict=True)
        )
        text = f"record {mismatch.position}: {pairs}"
        yield finding("index-mismatch", text, file=file, offset=mismatch.file_offset, length=32, channel=channel)
    if report.mismatch_count > _MAX_LISTED:
        text = f"{report.mismatch_count} records disagree in all; {_MAX_LISTED} are listed"
        yield finding("index-mismatch", text, file=file, channel=channel)
    yield from _index_coverage(file, channel, survey)


def _rebuild(survey: SliceSurvey) -> str:
    good = counted(sum(run.count for run in survey.runs), "good record")
    if survey.damages:
        places = counted(len(survey.damages), "damaged place")
        return f"the data file has {good} and {places}, at which a rebuild stops"
    return f"the server rebuilds it from the {good} of the data file"


def _index_coverage(file: str, channel: str, survey: SliceSurvey) -> Iterator[Finding]:
    report = survey.index
    if report.orphan_count:
        text = f"{_count(report.orphan_count)} not in the index: {_sequences(report.orphans)}"
        yield finding("index-orphans", text, file=file, offset=report.end, channel=channel, seq=report.orphans.first)
    if report.displaced_count:
        text = (
            f"{counted(report.displaced_count, 'index record', 'is/are')} in the wrong order: "
            f"{_sequences(report.displaced)}"
        )
        offset = FILE_HEADER_SIZE + report.first_displaced * INDEX_RECORD_SIZE
        yield finding("index-disorder", text, file=file, offset=offset, channel=channel, seq=report.displaced.first)
    held = Ranges.union(run.sequences for run in survey.runs)
    # An index that names records damaged in the data file is correct.
    if report.dangling_count and (not survey.damages or report.dangling & held):
        text = (
            f"{counted(report.dangling_count, 'index record')} without a message in the data file: "
            f"{_sequences(report.dangling)}"
        )
        offset = FILE_HEADER_SIZE + report.first_dangling * INDEX_RECORD_SIZE
        yield finding("index-dangling", text, file=file, offset=offset, channel=channel, seq=report.dangling.first)


def _index_stop(report: IndexReport) -> str:
    if report.stop == ScanStop.ZEROS:
        return "a record of zeros"
    if report.stop == ScanStop.BAD_CRC:
        return "a record that does not match its CRC"
    return counted(report.size - report.end, "byte", "that is/that are") + " no whole record"


def sequence_findings(survey: ChannelSurvey, history: ChannelHistory) -> Iterator[Finding]:
    channel = survey.files.name
    damaged, missing = survey.damaged, survey.missing
    named = (each.sequence for one in survey.slices for each in one.damages if each.sequence)
    if damaged - Ranges.of((sequence, sequence) for sequence in named):  # the findings of slices do not name them all
        text = f"{_count(damaged.count())}: {_sequences(damaged)}"
        yield finding("sequence-damaged", text, file=channel, channel=channel, seq=damaged.first)
    if missing:
        text = f"{_count(missing.count())}: {_sequences(missing)}"
        yield finding("sequence-missing", text, file=channel, channel=channel, seq=missing.first)
    yield from _pieces("sequence-duplicate", channel, history.duplicates, "stored a second time")
    yield from _pieces("sequence-disorder", channel, history.disordered, "after higher sequences")
    lived = [g for g in history.generations if not g.superseded]
    if len(lived) > 1:
        text = "; ".join(f"{n}: {_sequences(g.sequences)}" for n, g in enumerate(lived, 1))
        yield finding("sequence-generations", text, file=channel, channel=channel)
    for generation in history.generations:
        if generation.superseded:
            text = f"older messages with {_sequences(generation.sequences)}"
            yield finding("sequence-superseded", text, file=channel, channel=channel, seq=generation.sequences.first)
    if 0 in survey.intact:
        yield finding("sequence-zero", "a message with sequence 0", file=channel, channel=channel, seq=0)


def foreign_findings(root: Path, survey: ChannelSurvey) -> Iterator[Finding]:
    """Iterates over the findings about messages whose subject is not the channel."""
    channel = survey.files.name
    for run in survey.runs():
        if run.subject != survey.files.raw_name:
            yield _foreign(root, channel, run)


def _foreign(root: Path, channel: str, run: RecordRun) -> Finding:
    assert run.slice.data is not None
    subject = os.fsdecode(run.subject)
    legal = is_channel_name(subject)
    text = f"{_count(run.count)} of subject {subject!r}: {_sequences(run.sequences)}"
    return finding(
        "foreign-subject" if legal else "subject-invalid",
        text,
        file=_relative(root, run.slice.data),
        offset=run.start,
        length=run.end - run.start,
        channel=channel,
        seq=run.first,
    )


def _pieces(code: str, channel: str, pieces: list[RunPart], words: str) -> Iterator[Finding]:
    for piece in pieces:
        text = f"{_count(piece.sequences.count())} {words}: {_sequences(piece.sequences)}"
        yield finding(
            code,
            text,
            file=f"{channel}/{piece.run.slice.name}",
            offset=piece.run.start,
            length=piece.run.end - piece.run.start,
            channel=channel,
            seq=piece.sequences.first,
        )


def directory_findings(root: Path, survey: ChannelSurvey, *, in_use: bool) -> Iterator[Finding]:
    """Iterates over the findings about other files in a channel directory.

    `in_use`: the channel has messages, subscriptions or a subs.dat.
    """
    files = survey.files
    for path in files.raft_logs:
        yield finding("raft-log", "a raft log of a clustered node", file=_relative(root, path), channel=files.name)
    if not in_use and not survey.error:
        yield finding(
            "foreign-directory", "it holds neither messages nor subs.dat", file=files.name, channel=files.name
        )
    for path in files.foreign:
        yield finding("foreign-file", "the server ignores it", file=_relative(root, path), channel=files.name)
    for path in files.directories:
        yield finding("inner-directory", "the server ignores it", file=_relative(root, path), channel=files.name)
    if files.archived:
        total = sum(s.data_size for s in files.archived)
        text = f"{counted(len(files.archived), 'slice')}, {counted(total, 'byte')}"
        yield finding("archived-slices", text, file=files.name, channel=files.name, severity=Severity.INFO)


def _count(messages: int) -> str:
    return counted(messages, "message")


def _sequences(sequences: Ranges) -> str:
    return describe_sequences(sequences.pairs(), _RANGES_SHOWN) if sequences else "no sequence"


def _relative(root: Path, path: Path) -> str:
    return str(path.relative_to(root))


_LOG_CODES = {
    LogDamageKind.VERSION: "file-version",
    LogDamageKind.TORN: "log-torn",
    LogDamageKind.ZEROS: "log-zeros",
    LogDamageKind.PAYLOAD: "log-damaged",
    LogDamageKind.LENGTH: "log-damaged",
    LogDamageKind.TYPE: "log-damaged",
    LogDamageKind.CRC_FIELD: "log-damaged",
    LogDamageKind.UNDECODABLE: "log-damaged",
    LogDamageKind.GARBAGE: "log-damaged",
}


def log_findings(file: str, state: LogState, channel: str | None = None) -> Iterator[Finding]:
    """Iterates over one finding for each damaged range of a log; `file` is relative to the store's root."""
    for damage in state.damages:
        code, text = _LOG_CODES[damage.kind], damage.detail
        if damage.stop == ScanStop.DANGLING and damage.length == RECORD_HEADER_SIZE:
            code = "log-dangling-header"
        elif damage.kind == LogDamageKind.TYPE or (
            damage.kind == LogDamageKind.UNDECODABLE and "type" in damage.detail
        ):
            code = "log-unknown-type"
        if damage.repaired:
            text += "; the record is proven and can be kept"
        yield finding(code, text, file=file, offset=damage.offset, length=damage.length, channel=channel)


def subscription_findings(
    file: str, channel: str, state: SubsState, known_clients: Container[bytes], last_sequence: int
) -> Iterator[Finding]:
    """Iterates over the findings about subscriptions whose client is missing, or whose position is beyond the messages.

    `file` is relative to the root. `last_sequence` is the highest sequence found in the channel, damaged or not.
    """
    table = state.subscriptions
    rows, statuses = range(len(table)), table.statuses(known_clients)
    ahead = compress(rows, map(last_sequence.__lt__, table.last_sent))
    gone = compress(rows, statuses.translate(_GONE))
    for row in sorted({*ahead, *gone}):
        subscription, status, number = table.at(row), STATUSES[statuses[row]], table.ids[row]
        client = os.fsdecode(subscription.state.client_id)
        if status == SubStatus.GHOST:
            text = (
                f"subscription {number} of client {client!r}, group {os.fsdecode(subscription.state.q_group)!r}, "
                f"last sent {subscription.state.last_sent}, {len(subscription.pending)} pending"
            )
            yield finding("ghost-durable-queue", text, file=file, channel=channel, seq=number)
        elif status == SubStatus.ORPHAN:
            text = f"subscription {number} of client {client!r}"
            yield finding("orphan-subscription", text, file=file, channel=channel, seq=number, severity=Severity.INFO)
        if subscription.state.last_sent > last_sequence and status != SubStatus.ORPHAN:
            text = f"subscription {number}: last sent {subscription.state.last_sent}, last message {last_sequence}"
            yield finding("subscription-ahead", text, file=file, channel=channel, seq=number)
