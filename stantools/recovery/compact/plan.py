"""Planning a compaction: everything is read and checked, nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stantools.errors import RefusedError, readable
from stantools.escaping import shell_word
from stantools.format.crc import Crc
from stantools.format.layout import FILE_HEADER_SIZE
from stantools.inspection.findings import Finding, Severity
from stantools.inspection.slicesummary import SliceSummary, logical_view, summarise
from stantools.inspection.verify import ChannelVerdict, verify
from stantools.progress import Progress
from stantools.recovery.recovery_options import CompactOptions
from stantools.store.clientlog import read_clients
from stantools.store.directory import ChannelFiles, Datastore
from stantools.store.limits import DEFAULT_SLICES, UNLIMITED, SliceLimits
from stantools.store.mapping import mapped
from stantools.store.ranges import Ranges
from stantools.store.sublog import StoredSubscription, SubStatus, classify, read_subs

#: Findings that do not matter: the data is whole, and the indexes are recreated anyway.
HARMLESS = frozenset(
    {
        "case-collision",
        "foreign-directory",
        "foreign-file",
        "ghost-durable-queue",
        "index-damaged",
        "index-disorder",
        "index-empty",
        "index-mismatch",
        "index-missing",
        "index-without-data",
        "inner-directory",
        "leftover-file",
        "symlinked-channel",
        "witness-present",
    }
)
#: Findings about losses, of which a compaction would cover the traces: accepted on request only.
ACCEPTABLE = frozenset({"clients-missing", "slice-missing", "subs-missing", "subscription-ahead"})


@dataclass
class ChannelCompaction:
    """The compaction of one channel."""

    files: ChannelFiles
    slices: list[SliceSummary] = field(default_factory=list)  #: slices that hold messages, by number
    limits: SliceLimits = DEFAULT_SLICES  #: limits of a slice in the new store
    skip: int = 0  #: number of messages to leave out, the oldest ones
    kept: Ranges = field(default_factory=Ranges)  #: sequences that are kept
    messages: int = 0  #: messages that are kept
    bytes: int = 0  #: their bytes in data files and indexes
    subscriptions: int = 0  #: subscriptions that are kept
    orphans: frozenset[int] = frozenset()  #: ids of subscriptions that are left out

    @property
    def first_number(self) -> int:
        """Number of the first slice of the new store: never one that an archived slice has or may have had."""
        skip = self.skip
        for each in self.slices:
            if skip < each.count:
                return each.files.number if each.files.number > 0 else 1
            skip -= each.count
        return 1


@dataclass
class CompactionPlan:
    """A plan of a whole compaction."""

    store: Datastore
    crc: Crc
    options: CompactOptions
    channels: list[ChannelCompaction] = field(default_factory=list)  #: by name
    findings: list[Finding] = field(default_factory=list)  #: findings that do not matter
    clients: int = 0  #: connected clients
    bytes_before: int = 0  #: size of the files that are rewritten
    bytes_after: int = 0  #: their approximate size afterwards
    stamp: dict[str, tuple[int, int]] = field(default_factory=dict)  #: state of all files, to notice changes

    def summary(self) -> dict[str, Any]:
        """Returns the numbers of the plan with stable names, for reports."""
        return {
            "channels": len(self.channels),
            "clients": self.clients,
            "subscriptions": sum(channel.subscriptions for channel in self.channels),
            "orphans_dropped": sum(len(channel.orphans) for channel in self.channels),
            "messages_kept": sum(channel.messages for channel in self.channels),
            "messages_dropped": sum(channel.skip for channel in self.channels),
            "slices_before": sum(len(channel.slices) for channel in self.channels),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }


def plan_compaction(
    store: Datastore, options: CompactOptions | None = None, *, progress: Progress | None = None
) -> CompactionPlan:
    """Reads and checks a whole store, and plans its compaction.

    `progress` is called with bytes. Raises `RefusedError` if the store is damaged.
    """
    options = options or CompactOptions()
    store = store.checking
    plan = CompactionPlan(store, store.crc, options, stamp=stamp(store))
    verdict = verify(store, workers=options.workers, progress=progress)
    _refuse_damage(store, verdict.findings, options)
    plan.findings = verdict.findings
    clients = set()
    if store.clients:
        with mapped(store.clients) as buffer:
            state = read_clients(buffer, store.crc)
            plan.bytes_before += len(buffer)
        clients = set(state.clients)
        plan.clients = len(clients)
        plan.bytes_after += FILE_HEADER_SIZE + sum(len(each.SerializeToString()) + 8 for each in state.clients.values())
    now = time.time_ns() if options.now_ns is None else options.now_ns
    for each in verdict.channels:
        plan.channels.append(_plan_channel(plan, store.channel(each.name), each, now))
        _plan_subscriptions(plan, plan.channels[-1], clients)
    return plan


def _refuse_damage(store: Datastore, findings: list[Finding], options: CompactOptions) -> None:
    for finding in findings:
        if finding.severity == Severity.INFO or finding.code in HARMLESS:
            continue
        where = f"{finding.file}: " if finding.file else ""
        if finding.code in ACCEPTABLE:
            if not options.accept_loss:
                raise RefusedError(
                    f"{store.path}: {where}{finding.detail} ({finding.code})",
                    "look for the missing data first, or continue without it: --accept-loss",
                )
            continue
        raise RefusedError(
            f"{store.path}: is damaged and cannot be compacted: {where}{finding.detail} ({finding.code})",
            f"run `stantools salvage {shell_word(str(store.path))} --out NEW`, then compact the result",
        )


def _plan_channel(plan: CompactionPlan, files: ChannelFiles, verdict: ChannelVerdict, now: int) -> ChannelCompaction:
    options, crc = plan.options, plan.crc
    raw = files.raw_name
    limits = options.limits.limits_for(files.name) if options.limits else UNLIMITED
    slices = [each for each in (summarise(one, raw, crc) for one in files.slices) if each.count]
    channel = ChannelCompaction(
        files, slices, (options.slices or DEFAULT_SLICES).for_channel(limits), kept=verdict.intact
    )
    channel.messages = sum(each.count for each in slices)
    channel.bytes = sum(each.bytes for each in slices)
    if options.limits and slices:
        view = logical_view(slices, limits, raw, crc, now_ns=now)
        channel.skip, channel.bytes = view.removed, view.bytes
        first = view.first_seq
        if view.removed == channel.messages:
            # The last sequence is known from the last message only, so that one stays, as it does on a server's disk.
            channel.skip, first = channel.skip - 1, view.last_seq
            channel.bytes = slices[-1].bytes // slices[-1].count
        channel.messages -= channel.skip
        channel.kept = verdict.intact & Ranges.of([(first, 2**64 - 1)])
    plan.bytes_before += sum(each.data_size + each.index_size for each in (*files.slices, *files.lone_indexes))
    plan.bytes_after += channel.bytes
    return channel


def _plan_subscriptions(plan: CompactionPlan, channel: ChannelCompaction, clients: set[bytes]) -> None:
    if channel.files.subs is None:
        return
    with mapped(channel.files.subs) as buffer:
        subscriptions = read_subs(buffer, plan.crc).subscriptions
        plan.bytes_before += len(buffer)
    plan.bytes_after += FILE_HEADER_SIZE
    if plan.options.drop_orphans:
        orphans = (n for n, each in subscriptions.items() if classify(each.state, clients) is SubStatus.ORPHAN)
        channel.orphans = frozenset(orphans)
    kept = [each for number, each in subscriptions.items() if number not in channel.orphans]
    channel.subscriptions = len(kept)
    plan.bytes_after += sum(map(_live_size, kept))


def _live_size(subscription: StoredSubscription) -> int:
    # Nearly exact: a Msg record is 8 bytes of header, two tags, and varints for id and sequence.
    number = max(subscription.state.id.bit_length() + 6, 7) // 7
    sequences = sum(max(sequence.bit_length() + 6, 7) // 7 for sequence in subscription.pending)
    return 8 + subscription.state.ByteSize() + len(subscription.pending) * (10 + number) + sequences


def stamp(store: Datastore) -> dict[str, tuple[int, int]]:
    """Returns time of change and size of all files of a store, to detect later writes to it."""
    return dict(_stamps(store.path, ""))


def _stamps(directory: Path, prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    with readable(directory):
        for path in directory.iterdir():
            status = path.lstat()
            if path.is_dir() and not path.is_symlink():
                yield from _stamps(path, f"{prefix}{path.name}/")
            else:
                yield f"{prefix}{path.name}", (status.st_mtime_ns, status.st_size)
