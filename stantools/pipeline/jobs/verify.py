"""`verify` of several stores: `inspection.verify` in tasks.

The verdict of a store is that of the local verb: the same functions make it from the same surveys. Slices without a
store, such as an archive, are verified alone: missing messages around them are not a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stantools.format.crc import Crc
from stantools.inspection.findings import Finding
from stantools.inspection.runs import arrange
from stantools.inspection.scan_result import ScanResult
from stantools.inspection.source_queries import scan_source
from stantools.inspection.survey import ChannelSurvey, survey_slice
from stantools.inspection.survey_jobs import ChannelRef, survey_channels, survey_each
from stantools.inspection.verify import (
    ChannelReport,
    RootReport,
    Verdict,
    channel_verdict,
    loose_findings,
    registered_clients,
    verify_channel,
    verify_root,
)
from stantools.pipeline.jobs.stores import JobResult
from stantools.pipeline.tables.copies import copied_part
from stantools.pipeline.tables.discovery import FoundStore, ListedChannel, discover
from stantools.pipeline.tables.model import FailedRead, SliceRef, StorePart, StoreRef, TableName
from stantools.pipeline.tables.remote import RemoteFileSystem, is_remote, split_url, temporary_directory
from stantools.pipeline.tables.table_options import TableOptions
from stantools.sources.source import Source
from stantools.store.directory import ChannelFiles, Datastore, SliceFiles, open_datastore
from stantools.work import Work, WorkFailure, WorkItem


@dataclass
class StoreVerdict:
    root: str
    verdict: ScanResult  #: as in the local verb; its seconds are those of all tasks together
    whole: bool = True  #: everything in it could be read; the verdict covers the rest

    @property
    def clean(self) -> bool:
        """True if it could be read and has no finding worse than an information."""
        return self.whole and self.verdict.clean

    def as_json(self) -> dict[str, Any]:
        return {"store": self.root, **self.verdict.as_json(), "clean": self.clean}


@dataclass
class VerifyPlan:
    """A plan of verification, made before Spark starts so that a wrong path is reported at once."""

    stores: list[StoreRef] = field(default_factory=list)
    #: Roots and channels, or whole sources.
    items: list[ChannelRef | WorkItem[RootReport | ChannelReport | ScanResult]] = field(default_factory=list)
    #: For each item the number of its store and its path or URL.
    owners: list[tuple[int, str]] = field(default_factory=list)
    failed: list[FailedRead] = field(default_factory=list)  #: everything that cannot be listed

    @property
    def bytes(self) -> int:
        """Approximate bytes to read."""
        return sum(item.size for item in self.items)


def plan_verify(
    options: TableOptions, found: Sequence[FoundStore] | None = None, failed: Sequence[FailedRead] = ()
) -> VerifyPlan:
    """Finds the stores, unless given, and lists the items to verify.

    Raises `StoreUnreadableError` if nothing can be read, `UsageError` if channel patterns match none.
    """
    options = replace(options, table=TableName.FINDINGS)
    found, failed = discover(options) if found is None else (found, failed)
    plan = VerifyPlan(failed=list(failed))
    has_channels = False
    for number, store in enumerate(found):
        plan.stores.append(replace(store.ref, root=store.shown))
        if special := store.special:
            if special.matches(options.channels):
                plan.items.append(WorkItem(special.data_size(options.channels), partial(_verify, special, options)))
                plan.owners.append((number, store.shown))
                has_channels = True
            continue
        if store.loose is None:
            plan.items.append(WorkItem(0, partial(_verify_root, store.ref, options)))
            plan.owners.append((number, store.ref.root))
        for channel in store.channels(options.channels):
            plan.items.append(_channel_item(store, channel, options))
            path = channel.directory if isinstance(channel, ListedChannel) else f"{store.ref.root}/{channel.channel}"
            plan.owners.append((number, path))
            has_channels = True
    if options.channels and not has_channels:
        raise options.no_channel()
    return plan


def run_verify(
    work: Work,
    plan: VerifyPlan,
    *,
    progress: Callable[[int], object] | None = None,
    on_finding: Callable[[Finding], object] | None = None,
) -> JobResult[StoreVerdict]:
    """Verifies stores in tasks; `progress` is called with bytes, `on_finding` with each finding as it arrives."""
    verdicts = [Verdict() for _ in plan.stores]
    result = JobResult(
        [StoreVerdict(ref.root, verdict) for ref, verdict in zip(plan.stores, verdicts, strict=True)], list(plan.failed)
    )
    reports: dict[int, RootReport | ChannelReport] = {}
    for done in survey_each(work, plan.items, _verify_channel, progress=progress):
        owner, path = plan.owners[done.place]
        result.stores[owner].verdict.seconds += done.seconds
        if isinstance(done.result, WorkFailure):
            result.failed.append(FailedRead.of(path, done.result))
            result.stores[owner].whole = False
            continue
        if on_finding:
            for each in done.result.findings:
                on_finding(each)
        if isinstance(done.result, ScanResult):
            result.stores[owner].verdict = done.result
        else:
            reports[done.place] = done.result
    for place in sorted(reports):
        verdicts[plan.owners[place][0]].add(reports[place])
    return result


def _channel_item(
    store: FoundStore, channel: ListedChannel | FailedRead, options: TableOptions
) -> ChannelRef | WorkItem[ChannelReport]:
    """Returns the item of a channel; a failure to list it becomes a finding."""
    ref = store.ref
    if isinstance(channel, FailedRead):
        assert channel.channel is not None
        name, size = channel.channel, 0
    else:
        name, size = channel.name, channel.size()
    crc = Crc(ref.polynomial, options.check_crc)
    if store.loose is None or isinstance(channel, FailedRead):
        if is_remote(ref.root):
            return WorkItem(size, partial(_verify_remote, StorePart(ref, name, None, size), options))
        return ChannelRef(f"{ref.root}/{name}", crc, size=size)
    slices = store.slices(channel, archived=True)
    if is_remote(ref.root):
        return WorkItem(size, partial(_verify_remote_slices, channel.directory, name, tuple(slices), crc, options))
    files = ChannelFiles(name, Path(channel.directory), [each.files for each in slices])
    return ChannelRef(channel.directory, crc, files=files, size=size, loose=True)


def _verify_channel(channel: ChannelRef, survey: ChannelSurvey) -> ChannelReport:
    """In a task: makes the findings of a channel."""
    if channel.loose:
        return _loose_report(Path(channel.path), survey, channel.crc)
    root = Path(channel.path).parent
    return verify_channel(root, survey, channel.crc, registered_clients(root, channel.crc))


def _loose_report(directory: Path, survey: ChannelSurvey, crc: Crc) -> ChannelReport:
    history = arrange(survey.own_runs(), crc)
    findings = list(loose_findings(directory, survey, history))
    size = sum(each.size + each.index.size for each in survey.slices)
    return ChannelReport(findings, channel_verdict(survey, history, crc), size)


def _verify(source: Source, options: TableOptions) -> ScanResult:
    """In a task: verifies a source of another kind than a file store, as if it were alone."""
    read_options = replace(source.read_options, encryption_key=options.key.key())
    return scan_source(replace(source, read_options=read_options), patterns=options.channels, workers=1)


def _verify_root(store: StoreRef, options: TableOptions) -> RootReport:
    """In a task: verifies the files in a store's root."""
    with copied_part(StorePart(store, None, None, 0), options) as root:
        return verify_root(open_datastore(root, Crc(store.polynomial, options.check_crc)))


def _verify_remote(part: StorePart, options: TableOptions) -> ChannelReport:
    """In a task: copies the files of a remote channel and verifies them."""
    assert part.channel is not None
    crc = Crc(part.store.polynomial, options.check_crc)
    with copied_part(part, options) as root:
        (survey,) = survey_channels(Datastore(root, crc=crc), [part.channel], workers=1)
        return verify_channel(root, survey, crc, registered_clients(root, crc))


def _verify_remote_slices(
    url: str, channel: str, slices: Sequence[SliceRef], crc: Crc, options: TableOptions
) -> ChannelReport:
    """In a task: copies remote slices without a store and verifies them."""
    with temporary_directory() as directory:
        remote = RemoteFileSystem(url, options.storage)
        files = ChannelFiles(channel, directory)
        for each in slices:
            data, index = (None if one is None else directory / split_url(one)[1] for one in (each.data, each.index))
            for one, target in ((each.data, data), (each.index, index)):
                if one is not None and target is not None:
                    remote.copy(one, target)
            files.slices.append(SliceFiles(each.number, data, index, each.archived, each.data_size, each.index_size))
        survey = ChannelSurvey(files, [survey_slice(each, files.raw_name, crc) for each in files.slices])
        return _loose_report(directory, survey, crc)
