"""What a job of salvage has to do: which stores, what of them, and what they are called afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stantools.errors import StantoolsError, UsageError
from stantools.escaping import escape
from stantools.inspection.survey import ChannelRef
from stantools.pipeline.jobs.salvageplaces import Reports, check_folder, is_ours, store_names
from stantools.pipeline.jobs.surveys import channels_of
from stantools.pipeline.tables.discovery import discover
from stantools.pipeline.tables.found import FoundStore
from stantools.pipeline.tables.model import Failed, StoreRef
from stantools.pipeline.tables.options import TableOptions
from stantools.pipeline.tables.remote import is_remote
from stantools.recovery.options import SalvageOptions
from stantools.store.directory import open_datastore

#: Stores are taken together until they are so many, or have so many bytes.
_STORES = 64
_BYTES = 16 << 30


@dataclass(frozen=True)
class StoreWork:
    """A store that is to be salvaged."""

    ref: StoreRef  #: the store
    name: str  #: its name among the new ones
    channels: list[ChannelRef]  #: what is surveyed of it

    @property
    def size(self) -> int:
        """Bytes of its channels."""
        return sum(channel.size for channel in self.channels)


@dataclass
class SalvageJob:
    """What is to be done: made without Spark, so that what is impossible is reported at once."""

    options: SalvageOptions  #: how to salvage
    out: Path | None = None  #: the directory of the new stores; None writes nothing
    force: bool = False  #: go on although a server seems to be using a store
    stores: list[StoreWork] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)  #: what cannot be read
    passed: list[str] = field(default_factory=list)  #: stores that are left alone, and why


def plan_job(
    options: TableOptions, salvage: SalvageOptions, out: str | None, *, dry_run: bool = False, force: bool = False
) -> SalvageJob:
    """Finds the stores, and lists what has to be done.

    Args:
        options: The paths of the stores, on file systems; how they are read.
        salvage: How to salvage, with the patterns of the channels.
        out: The directory of the new stores.
        dry_run: Write nothing.
        force: Continue even though a server seems to be using a store.

    Raises:
        RefusedError: `out` lies inside one of the stores.
        StoreUnreadableError: There is nothing at all to be read.
        StoreUnwritableError: Nothing can be written to `out`.
        UsageError: Something that was asked for makes no sense.
    """
    if out is None and not dry_run:
        raise UsageError(
            "--out is missing: where are the new stores to go?", "add --out DIR, or --dry-run for the plans"
        )
    if out is not None and "://" in out:
        raise UsageError(f"--out {out}: new stores are written to a file system", "name a directory")
    if remote := [path for path in options.paths if is_remote(path)]:
        raise UsageError(
            f"{escape(remote[0])}: stores are salvaged from a file system, not from a URL",
            "mount it where all workers see it, or copy the store; `stantools pipeline export` reads URLs",
        )
    found, unreadable = discover(options)
    job = _listed(found, salvage, None if out is None else Path(out).absolute(), dry_run=dry_run)
    job.force = force
    job.failed[:0] = unreadable
    if not job.stores and not job.failed:
        if salvage.patterns:
            raise replace(options, channels=salvage.patterns).no_channel()
        raise UsageError("there is nothing to salvage", "name the stores that are damaged")
    return job


def _listed(found: Sequence[FoundStore], options: SalvageOptions, out: Path | None, *, dry_run: bool) -> SalvageJob:
    job = SalvageJob(options, None if dry_run else out)
    stores = []
    for store in found:
        root = store.ref.root
        if store.loose is not None:
            job.failed.append(
                Failed(
                    root,
                    f"{root}: holds slices, but is not a store: nothing says what is missing around them",
                    "name the directory given to the server as -dir; slices alone: stantools pipeline export",
                )
            )
        elif out is not None and is_ours(root, out):
            job.passed.append(f"{root}: was made by a salvage, and is not salvaged again")
        else:
            stores.append(store)
    if job.out is not None:
        check_folder(job.out, [store.ref.root for store in stores])
    names = store_names([store.ref.root for store in stores], Reports(out).names if out is not None else None)
    for store, name in zip(stores, names, strict=True):
        _add(job, store.ref, name)
    return job


def _add(job: SalvageJob, ref: StoreRef, name: str) -> None:
    patterns = job.options.patterns
    try:
        channels = channels_of(open_datastore(ref.root), ref.polynomial, patterns, archived=job.options.archived)
    except StantoolsError as error:
        job.failed.append(Failed.of(ref.root, error))
        return
    if patterns and not channels:
        job.passed.append(f"{ref.root}: has no such channel")
        return
    job.stores.append(StoreWork(ref, name, channels))


def batches(stores: Sequence[StoreWork]) -> Iterator[list[StoreWork]]:
    """Puts stores together that are salvaged together; what is done of them stays done."""
    batch: list[StoreWork] = []
    size = 0
    for store in stores:
        if batch and (len(batch) == _STORES or size + store.size > _BYTES):
            yield batch
            batch, size = [], 0
        batch.append(store)
        size += store.size
    if batch:
        yield batch
