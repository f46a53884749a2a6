"""Plan of a salvage job: the stores, their channels, the new stores' names, and finished stores.

A new store has the directory name of the old one. Stores of equal name get the distinguishing part of their path in
front (`node1-data`, `node2-data`), and if that does not suffice, digits of a hash.

`.stantools-salvage` beside the new stores records the finished ones: a file for each, with its report and a
fingerprint of the old store. A store that has not changed since is not salvaged again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from stantools.errors import StantoolsError, StoreUnwritableError, UsageError
from stantools.escaping import escape, known
from stantools.inspection.survey_jobs import ChannelRef
from stantools.nats.stream_names import LONGEST, with_hash
from stantools.pipeline.jobs.stores import channels_of
from stantools.pipeline.tables.discovery import FoundStore, discover
from stantools.pipeline.tables.model import FailedRead, StoreRef
from stantools.pipeline.tables.remote import is_remote
from stantools.pipeline.tables.table_options import TableOptions
from stantools.recovery.place import check_outside
from stantools.recovery.recovery_options import SalvageOptions, StreamSalvageOptions
from stantools.recovery.salvage.manifest import describe
from stantools.recovery.salvage.model import SalvagePlan
from stantools.sources.sql import file_of
from stantools.sqlstore.address import is_address
from stantools.store.atomic import absolute, json_object
from stantools.store.directory import MANIFEST_FILE
from stantools.store.durable import replace_file, unwritable, writing

#: A URL; as a path it has one slash.
_URL = re.compile(r"[a-zA-Z][\w+.-]*:/")
#: Directory of the records of finished stores.
REPORTS = ".stantools-salvage"
#: Levels of directories from the folder of several nodes to the files of a stream's consumer.
_STREAM_LEVELS = 8


def store_names(roots: Sequence[str], before: Mapping[str, str] | None = None) -> list[str]:
    """Returns a unique name for each store; `before` holds names given before."""
    before = before or {}
    parts = {root: [part for part in Path(root).parts if part != "/"] or ["store"] for root in roots}
    depth = dict.fromkeys((root for root in roots if root not in before), 1)
    while True:
        # Compared without case: some file systems ignore it.
        names = {root: _joined_name(parts[root][-deep:]) for root, deep in depth.items()}
        taken = Counter(name.casefold() for name in (*names.values(), *before.values()))
        clashing = [root for root, name in names.items() if taken[name.casefold()] > 1]
        deeper = [root for root in clashing if depth[root] < len(parts[root])]
        if not deeper:
            break
        for root in deeper:
            depth[root] += 1
    for root in clashing:
        names[root] = with_hash(names[root], root)
    return [before.get(root) or names[root] for root in roots]


def _joined_name(parts: Sequence[str]) -> str:
    name = "-".join(parts).lstrip(".") or "store"
    return name if len(os.fsencode(name)) <= LONGEST else with_hash(name, name)


def check_folder(out: Path, roots: Sequence[str]) -> None:
    """Checks that new stores can be put into a directory; makes it if needed.

    Raises `RefusedError` if it is inside one of the old stores.
    """
    for root in roots:
        check_outside(Path(root), out)
    if out.exists() and not out.is_dir():
        raise StoreUnwritableError(f"{out}: exists already and is not a directory", "name another directory")
    with writing(out):
        out.mkdir(exist_ok=True)
    if not os.access(out, os.W_OK | os.X_OK):
        raise unwritable(PermissionError(13, os.strerror(13)), out)


def is_ours(root: str, out: Path) -> bool:
    """Returns whether a store was put into the directory by a salvage."""
    store = Path(root)
    return absolute(store).parent == absolute(out) and (store / MANIFEST_FILE).is_file()


def seen(store: FoundStore) -> str:
    """Returns a fingerprint of a store: a hash of the names, sizes and times of its files, its archive or its dump."""
    digest = hashlib.sha256()
    source = store.source
    lines = _lines(Path(store.ref.root), levels=_STREAM_LEVELS if source and source.holds_streams else 1)
    if source and (source.archived or source.sql):
        path, _ = file_of(source.path)
        file = next((each for each in (path, *path.parents) if each.is_file()), None)
        if file is None:
            return uuid.uuid4().hex  # a database may have changed at any time
        lines = (line for line in _lines(file.parent, levels=0) if line.startswith(os.fsencode(f"{file.name}\0")))
    for line in sorted(lines):
        digest.update(line)
    return digest.hexdigest()


def _lines(directory: Path, *, levels: int, prefix: str = "") -> Iterator[bytes]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        name, state = f"{prefix}{entry.name}", ""
        with suppress(OSError):
            if entry.is_dir():
                if levels:
                    yield from _lines(Path(entry.path), levels=levels - 1, prefix=f"{name}/")
            else:
                status = entry.stat()
                state = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        yield os.fsencode(f"{name}\0{state}\n")


class Request(Protocol):
    """Request of a store's salvage; equal requests of an unchanged store have equal results."""

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class SalvageRequest:
    options: SalvageOptions
    polynomial: int
    seen: str  #: fingerprint of the store (`seen`)

    def as_json(self) -> dict[str, Any]:
        options = self.options
        return {
            "cluster_id": options.cluster_id,
            "generation": options.generation,
            "fill_gaps": options.fill_gaps,
            "archived": options.archived,
            "channels": list(options.patterns),
            "crc_polynomial": self.polynomial,
            "seen": self.seen,
        }


@dataclass(frozen=True)
class StreamSalvageRequest:
    """Request of a salvage of a JetStream directory."""

    options: StreamSalvageOptions
    patterns: tuple[str, ...]
    seen: str

    def as_json(self) -> dict[str, Any]:
        options = self.options
        return {
            "to": str(options.to),
            "server_version": options.server_version,
            "replicas": options.replicas,
            "channels": list(self.patterns),
            "seen": self.seen,
        }


class Reports:
    """Records of the stores that earlier runs finished in a directory."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._found: dict[str, dict[str, Any]] = {}
        for path in sorted((out / REPORTS).glob("*.json")):
            entry = json_object(path, own=True)
            name = path.name.removesuffix(".json")
            # A removed new store is made again, under any name.
            if entry and _is_there(out / name, entry):
                self._found[str(entry.get("source"))] = {**entry, "name": name}

    @property
    def names(self) -> dict[str, str]:
        return {source: entry["name"] for source, entry in self._found.items()}

    def find(self, root: str, request: Request) -> dict[str, Any] | None:
        """Returns the report of a store finished with the same request, if unchanged since."""
        entry = self._found.get(root)
        if entry is None or entry.get("request") != request.as_json():
            return None
        report: dict[str, Any] = entry["report"]
        out = self._out / entry["name"]
        return {**report, "out": str(out)} | ({"manifest": str(out / MANIFEST_FILE)} if "manifest" in report else {})

    def keep(self, root: str, name: str, request: Request, report: dict[str, Any]) -> None:
        folder = self._out / REPORTS
        with writing(folder):
            folder.mkdir(exist_ok=True)
        entry = {"made_by": "stantools", "source": root, "request": request.as_json(), "report": report}
        replace_file(folder / f"{name}.json", known(json.dumps(entry)).encode("ascii"))


def _is_there(out: Path, entry: Mapping[str, Any]) -> bool:
    """Returns whether the new store of a record is there; that of a JetStream directory has no manifest."""
    manifest = "manifest" in entry.get("report", ())
    return (out / MANIFEST_FILE).is_file() if manifest else out.is_dir()


def check_target(root: str, out: Path) -> bool:
    """Checks the place of a new store before the old one is read.

    Returns whether a salvage of the store already exists; raises `StoreUnwritableError` if anything else does.
    """
    with writing(out):
        if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
            return False
    if json_object(out / MANIFEST_FILE).get("source") == known(root):
        return True
    raise StoreUnwritableError(
        f"{out}: exists already, and is not a salvage of {root}",
        "remove it or rename it, or name another directory with --out",
    )


def check_same(plan: SalvagePlan, out: Path) -> None:
    """Raises `StoreUnwritableError` if the existing salvage differs from the planned one."""
    manifest = json_object(out / MANIFEST_FILE)
    wanted = json.loads(known(json.dumps(describe(plan, []))))
    differs = [
        name for name, value in wanted.items() if name not in ("made_by", "moved") and manifest.get(name) != value
    ]
    if differs:
        raise StoreUnwritableError(
            f"{out}: exists already, and is another salvage of {plan.source} ({differs[0]} differs): the store has "
            "changed since, or other options are given now",
            "remove it or rename it, or name another directory with --out",
        )


#: Limits of a batch of stores: number and bytes.
_STORES = 64
_BYTES = 16 << 30


@dataclass(frozen=True)
class StoreWork:
    found: FoundStore
    name: str  #: name of the new store
    channels: list[ChannelRef]  #: channels to survey

    @property
    def ref(self) -> StoreRef:
        return self.found.ref

    @property
    def root(self) -> str:
        """The store, as in the output."""
        return self.found.shown

    @property
    def size(self) -> int:
        return streams.data_size() if (streams := self.found.streams) else sum(each.size for each in self.channels)


@dataclass
class SalvageJob:
    """A salvage job, planned without Spark so that anything impossible is reported at once."""

    options: SalvageOptions
    stream_options: StreamSalvageOptions = StreamSalvageOptions()
    out: Path | None = None  #: directory of the new stores; None writes nothing
    force: bool = False  #: continue although a server seems to be using a store
    stores: list[StoreWork] = field(default_factory=list)
    failed: list[FailedRead] = field(default_factory=list)  #: everything that cannot be read
    passed: list[str] = field(default_factory=list)  #: skipped stores, each with the reason

    def request(self, work: StoreWork) -> Request:
        fingerprint = seen(work.found)
        if work.found.streams:
            return StreamSalvageRequest(self.stream_options, self.options.patterns, fingerprint)
        return SalvageRequest(self.options, work.ref.polynomial, fingerprint)


def plan_job(
    options: TableOptions,
    salvage: SalvageOptions,
    out: str | None,
    streams: StreamSalvageOptions | None = None,
    *,
    dry_run: bool = False,
    force: bool = False,
    found: Sequence[FoundStore] | None = None,
    failed: Sequence[FailedRead] = (),
) -> SalvageJob:
    """Finds the stores, unless given, and plans the job; `out` is the directory of the new stores.

    Raises `RefusedError` if it is inside one of the stores, `StoreUnreadableError` if nothing can be read at all.
    """
    if out is None and not dry_run:
        raise UsageError(
            "--out is missing: the directory of the new stores", "add --out DIR, or --dry-run for the plans"
        )
    if out is not None and _URL.match(out):
        raise UsageError(f"--out {out}: new stores must be on a file system", "name a directory")
    if remote := [path for path in options.paths if is_remote(path) and not is_address(path)]:
        raise UsageError(
            f"{escape(remote[0])}: a store must be on a file system, not at a URL",
            "mount it where all workers see it, or copy the store; `stantools export` reads URLs",
        )
    if found is None:
        found, failed = discover(options)
    job = _listed(found, salvage, None if out is None else Path(out).absolute(), dry_run=dry_run)
    job.force, job.stream_options = force, streams or StreamSalvageOptions()
    job.failed[:0] = failed
    if not job.stores and not job.failed:
        if salvage.patterns:
            raise replace(options, channels=salvage.patterns).no_channel()
        raise UsageError("there is nothing to salvage", "name the damaged stores")
    return job


def _listed(found: Sequence[FoundStore], options: SalvageOptions, out: Path | None, *, dry_run: bool) -> SalvageJob:
    job = SalvageJob(options, out=None if dry_run else out)
    stores = []
    for store in found:
        root = store.ref.root
        if store.loose is not None:
            job.failed.append(
                FailedRead(
                    root,
                    f"{root}: holds slices, but is not a store: missing slices cannot be known",
                    "name the directory given to the server as -dir; for slices alone: stantools export",
                )
            )
        elif out is not None and is_ours(root, out):
            job.passed.append(f"{root}: was made by a salvage and is skipped")
        else:
            stores.append(store)
    if job.out is not None:
        check_folder(job.out, [store.ref.root for store in stores])
    named = {store.shown: str(Path(store.shown).with_name(store.name)) for store in stores}
    taken = Counter(named.values())  # a store and an archive of it may lie side by side
    named = {shown: path if taken[path] == 1 else shown for shown, path in named.items()}
    before = Reports(out).names if out is not None else {}
    names = store_names([*named.values()], {named.get(source, source): name for source, name in before.items()})
    for store, name in zip(stores, names, strict=True):
        _add(job, store, name)
    return job


def _add(job: SalvageJob, store: FoundStore, name: str) -> None:
    source, patterns, channels = store.opened(), job.options.patterns, []
    try:
        if not source.matches(patterns):
            job.passed.append(f"{store.shown}: has no matching {'stream' if source.holds_streams else 'channel'}")
            return
        if not source.holds_streams:
            channels = channels_of(source.store(), store.ref.polynomial, patterns, archived=job.options.archived)
    except StantoolsError as error:
        job.failed.append(FailedRead.of(store.shown, error))
        return
    job.stores.append(StoreWork(store, name, channels))


def batches(stores: Sequence[StoreWork]) -> Iterator[list[StoreWork]]:
    """Yields batches of stores; the work on a batch stays done."""
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
