"""The table of findings: what `stantools verify` finds, the root of a store first, then channel by channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stantools.errors import StoreUnreadableError
from stantools.inspection.catalogue import finding
from stantools.inspection.file_findings import foreign_findings, sequence_findings, slice_findings
from stantools.inspection.findings import Finding
from stantools.inspection.runs import arrange
from stantools.inspection.survey import ChannelSurvey, survey_channels, survey_slice
from stantools.inspection.verify import verify_channel, verify_root
from stantools.pipeline.tables.model import Unreadable
from stantools.pipeline.tables.parts import LocalPart, Row, int64, text
from stantools.pipeline.tables.slices import slice_files
from stantools.pipeline.tables.text import plain_text, raw_name
from stantools.store.directory import ChannelFiles, Datastore, open_datastore


def rows(here: LocalPart) -> Iterator[Row]:
    """Gives the findings of a store's root, of a channel, or of a slice without a store.

    Raises:
        StoreUnreadableError: The root cannot be listed.
    """
    for each in _findings(here):
        yield _row(here.store, each)


def unreadable_row(part: Unreadable) -> Row:
    """Returns the finding for a store that cannot be read at all."""
    return _row(plain_text(part.root), finding("file-unreadable", part.message, file=part.file, channel=part.channel))


def _row(store: str, each: Finding) -> Row:
    return {
        "store": store,
        "code": each.code,
        "severity": each.severity.value,
        "file": text(each.file),
        "offset": int64(each.offset),
        "length": int64(each.length),
        "channel": text(each.channel),
        "seq": int64(each.seq),
        "detail": text(each.detail),
        "remedy": text(each.remedy),
    }


def _findings(here: LocalPart) -> list[Finding]:
    crc = here.crc
    if here.part.channel is None:
        return verify_root(open_datastore(here.root), crc).findings
    if here.part.file is not None:
        return list(_slice_findings(here))
    (survey,) = survey_channels(Datastore(here.root), [here.part.channel], crc, workers=1)
    known = here.clients.intact(here.root, crc)
    return verify_channel(here.root, survey, crc, known).findings


def _slice_findings(here: LocalPart) -> Iterator[Finding]:
    """Gives the findings of a slice without a store: of itself and its index, and of the sequences in it."""
    assert here.part.channel is not None
    files = slice_files(here.file)
    survey = survey_slice(files, raw_name(here.part.channel), here.crc)
    channel = ChannelSurvey(ChannelFiles(here.part.channel, here.root, [files]), [survey])
    try:
        yield from slice_findings(here.root, channel)
        yield from sequence_findings(channel, arrange(channel.own_runs(), here.crc))
        yield from foreign_findings(here.root, channel)
    except StoreUnreadableError as error:
        yield finding("file-unreadable", error.message, file=str(Path(here.part.file or "")))
