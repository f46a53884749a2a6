"""`pipeline verify`: what `inspection.verify` finds in one store, for many, in tasks.

Every store's verdict is the one that the local verb gives: the same functions make it, of the same surveys. Slices
without a store, an archive for instance, are verified as far as that makes sense: what is missing around them is no
finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from stantools.format.crc import Crc
from stantools.inspection.file_findings import foreign_findings, sequence_findings, slice_findings
from stantools.inspection.findings import Finding
from stantools.inspection.runs import arrange
from stantools.inspection.survey import ChannelSurvey, Reading, survey_channels, survey_slice
from stantools.inspection.verify import (
    ChannelReport,
    RootReport,
    Verdict,
    channel_verdict,
    intact_clients,
    verify_channel,
    verify_root,
)
from stantools.pipeline.jobs.outcome import Failed
from stantools.pipeline.jobs.surveys import ChannelRef, Other, survey_channels_on
from stantools.pipeline.tables.copies import copied_part
from stantools.pipeline.tables.found import FoundChannel, FoundStore
from stantools.pipeline.tables.model import SliceRef, StorePart, StoreRef, Table, Unreadable
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.remote import Remote, is_remote, split_url, temporary_directory
from stantools.store.directory import CLIENTS_FILE, ChannelFiles, Datastore, SliceFiles, open_datastore
from stantools.work import Failure, Work


@dataclass
class StoreVerdict:
    """What verify says about one store.

    Attributes:
        root: The store.
        verdict: As the local verb has it; its seconds are those of all tasks together.
        whole: Everything in it could be read; the verdict is about the rest.
    """

    root: str
    verdict: Verdict
    whole: bool = True

    @property
    def clean(self) -> bool:
        """It could be read, and nothing worse than an information was found."""
        return self.whole and self.verdict.clean

    def as_json(self) -> dict[str, Any]:
        """Returns the json of the local verb, with the store in front."""
        return {"store": self.root, **self.verdict.as_json(), "clean": self.clean}


@dataclass
class VerifyResult:
    """The result of verify over many stores.

    Attributes:
        stores: One verdict each, in the order in which they were given.
        failed: What could not be read.
    """

    stores: list[StoreVerdict] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Everything could be read, and nothing worse than an information was found."""
        return not self.failed and all(store.clean for store in self.stores)

    def as_json(self) -> dict[str, Any]:
        """Returns the result as the jobs' json contract has it."""
        return {
            "clean": self.clean,
            "stores": [store.as_json() for store in self.stores],
            "failed": [each.as_json() for each in self.failed],
        }


@dataclass
class VerifyPlan:
    """What is to be done: made without Spark, so that a wrong path is told at once.

    Attributes:
        options: How stores are read.
        stores: The stores.
        items: Roots and channels.
        owners: For each item the number of its store.
        failed: What cannot be listed.
        bytes: Bytes to be read.
    """

    options: TableOptions
    stores: list[StoreRef] = field(default_factory=list)
    items: list[ChannelRef | Other] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes that have to be read, about."""
        return sum(item.size for item in self.items)

    @property
    def has_channels(self) -> bool:
        """There is more than the roots of stores."""
        return any(not isinstance(item, _Root) for item in self.items)

    def add(self, item: ChannelRef | Other) -> None:
        """Adds something that belongs to the store that was added last."""
        self.items.append(item)
        self.owners.append(len(self.stores) - 1)


def plan_verify(found: Sequence[FoundStore], unreadable: Sequence[Unreadable], options: TableOptions) -> VerifyPlan:
    """Lists what has to be verified.

    Args:
        found: The stores (`tables.discovery.discover`).
        unreadable: What cannot be read of what was given.
        options: Channels to take, how to read.
    """
    options = replace(options, table=Table.FINDINGS)
    plan = VerifyPlan(options, failed=[Failed.unreadable(each) for each in unreadable])
    for store in found:
        plan.stores.append(store.ref)
        if store.loose is None:
            plan.add(_Root(store.ref, options))
        for channel in store.channels(options.channels):
            plan.add(_channel_item(store, channel, options))
    return plan


def run_verify(
    work: Work,
    plan: VerifyPlan,
    *,
    progress: Callable[[int], object] | None = None,
    on_finding: Callable[[Finding], object] | None = None,
) -> VerifyResult:
    """Verifies stores in tasks.

    Args:
        work: Runs the tasks.
        plan: What to verify.
        progress: Told the number of bytes as they are done.
        on_finding: Told each finding as it arrives.

    Raises:
        StantoolsError: Spark cannot do it.
    """
    result = VerifyResult([StoreVerdict(ref.root, Verdict()) for ref in plan.stores], list(plan.failed))
    reports: list[RootReport | ChannelReport | None] = [None] * len(plan.items)
    for done in survey_channels_on(work, plan.items, _verified, progress=progress):
        verdict = result.stores[plan.owners[done.place]].verdict
        verdict.seconds += done.seconds
        if isinstance(done.result, Failure):
            result.failed.append(Failed.task(_path(plan, done.place), done.result))
            result.stores[plan.owners[done.place]].whole = False
            continue
        reports[done.place] = done.result
        for each in done.result.findings if on_finding else ():
            on_finding(each)  # type: ignore[misc]
    for owner, report in zip(plan.owners, reports, strict=True):
        if report is None:
            continue
        verdict = result.stores[owner].verdict
        verdict.findings += report.findings
        verdict.bytes_scanned += report.bytes_scanned
        if isinstance(report, ChannelReport):
            verdict.channels.append(report.verdict)
    return result


def _path(plan: VerifyPlan, place: int) -> str:
    item = plan.items[place]
    return item.path if isinstance(item, ChannelRef | _RemoteChannel | _Loose) else plan.stores[plan.owners[place]].root


def _channel_item(
    store: FoundStore, channel: FoundChannel | Unreadable, options: TableOptions
) -> ChannelRef | _RemoteChannel | _Loose:
    """Says how a channel is verified; that it cannot be listed is a finding."""
    ref = store.ref
    crc = Crc(ref.polynomial, options.check_crc)
    if isinstance(channel, Unreadable):
        assert channel.channel is not None
        if is_remote(ref.root):
            return _RemoteChannel(ref, channel.channel, options, 0)
        return ChannelRef(f"{ref.root}/{channel.channel}", crc)
    if is_remote(ref.root):
        if store.loose is not None:
            slices = tuple(store.slices(channel, archived=True))
            return _Loose(ref, channel.name, channel.directory, slices, options, channel.size())
        return _RemoteChannel(ref, channel.name, options, channel.size())
    files = None
    if store.loose is not None:
        local = [slice_files(each) for each in store.slices(channel, archived=True)]
        files = ChannelFiles(channel.name, Path(channel.directory), local)
    return ChannelRef(channel.directory, crc, files=files, size=channel.size())


def slice_files(ref: SliceRef) -> SliceFiles:
    """Returns the local files of a slice."""
    index = None if ref.index is None else Path(ref.index)
    return SliceFiles(ref.number, Path(ref.data), index, ref.archived, ref.data_size, ref.index_size)


def _verified(channel: ChannelRef, survey: ChannelSurvey) -> ChannelReport:
    """In a task: makes the findings of a channel."""
    if channel.files is not None:
        return _loose_report(Path(channel.path), survey, channel.crc)
    root = Path(channel.path).parent
    return verify_channel(root, survey, channel.crc, _clients(root, channel.crc))


def _loose_report(directory: Path, survey: ChannelSurvey, crc: Crc) -> ChannelReport:
    """Makes the findings of slices without a store: of themselves, their indexes, and the sequences in them."""
    findings = [
        *slice_findings(directory, survey),
        *sequence_findings(survey, arrange(survey.own_runs(), crc)),
        *foreign_findings(directory, survey),
    ]
    return ChannelReport(findings, channel_verdict(survey), sum(each.size + each.index.size for each in survey.slices))


def _clients(root: Path, crc: Crc) -> frozenset[bytes]:
    path = root / CLIENTS_FILE
    try:
        state = path.stat()
    except OSError:
        return frozenset()
    return _known_clients(path, state.st_mtime_ns, state.st_size, crc)


@lru_cache(maxsize=16)
def _known_clients(path: Path, changed: int, size: int, crc: Crc) -> frozenset[bytes]:
    """Reads clients.dat once for all channels of a store that a process verifies, and again when it has changed."""
    return intact_clients(path, crc)


@dataclass(frozen=True)
class _Root:
    """The files in a store's root."""

    store: StoreRef
    options: TableOptions
    size: int = 0

    def run(self) -> RootReport:
        with copied_part(StorePart(self.store, None, None, 0), self.options) as root:
            return verify_root(open_datastore(root), Crc(self.store.polynomial, self.options.check_crc))


@dataclass(frozen=True)
class _RemoteChannel:
    """A channel of a store behind a URL: its files are copied to where it is verified."""

    store: StoreRef
    channel: str
    options: TableOptions
    size: int

    @property
    def path(self) -> str:
        return f"{self.store.root}/{self.channel}"

    def run(self) -> ChannelReport:
        crc = Crc(self.store.polynomial, self.options.check_crc)
        with copied_part(StorePart(self.store, self.channel, None, self.size), self.options) as root:
            (survey,) = survey_channels(Datastore(root), [self.channel], crc, workers=1)
            return verify_channel(root, survey, crc, _clients(root, crc))


@dataclass(frozen=True)
class _Loose:
    """Slices without a store behind a URL."""

    store: StoreRef
    channel: str
    path: str
    slices: tuple[SliceRef, ...]
    options: TableOptions
    size: int

    def run(self) -> ChannelReport:
        crc = Crc(self.store.polynomial, self.options.check_crc)
        with temporary_directory() as directory:
            remote = Remote(self.path, self.options.storage)
            here: list[SliceFiles] = []
            for each in self.slices:
                data, index = (
                    None if url is None else directory / split_url(url)[1] for url in (each.data, each.index)
                )
                for url, target in ((each.data, data), (each.index, index)):
                    if url is not None and target is not None:
                        remote.copy(url, target)
                here.append(SliceFiles(each.number, data, index, each.archived, each.data_size, each.index_size))
            reading = Reading(crc)
            files = ChannelFiles(self.channel, directory, here)
            survey = ChannelSurvey(files, [survey_slice(each, files.raw_name, reading) for each in here])
            return _loose_report(directory, survey, crc)
