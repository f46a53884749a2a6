"""The repair of a JetStream directory in place: only steps that can lose nothing.

- A fresh `meta.sum` for an intact `meta.inf`, of a stream or a consumer: without it, a server loads neither. If one bit
  of `meta.inf` flipped, as `meta.sum` proves, that bit is turned back instead.
- An `index.db` that every server rejects and removes is moved into the backup.
- So are leftovers that a server takes for data, or puts in its place, unless they hold messages that are nowhere else.

Steps are tried on a private shadow of its directory (links to its files) and forecast there. They are
refused if a start would then destroy more than it does now. Facts: jetstream-store.md sections 2, 5, 15, 16.4 and 20.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

from stantools.errors import StoreUnreadableError
from stantools.escaping import escape
from stantools.inspection.forecast.changes import Change, DeleteChange, WriteChange
from stantools.inspection.stream_forecast.directory_forecast import (
    DirectoryForecast,
    forecast_directory,
    merged_forecast,
)
from stantools.inspection.stream_forecast.versions import ServerRules
from stantools.notation import counted
from stantools.progress import Progress
from stantools.recovery.streams.configs import mended_content
from stantools.recovery.truncate.apply import apply_changes
from stantools.sources.source import Source
from stantools.store.durable import writing
from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.layout import INDEX, MESSAGES, PURGING
from stantools.streamfiles.meta import meta_sum
from stantools.streamfiles.survey import StreamSurvey

#: names in `msgs` that some server takes for a block (jetstream-store.md section 16.4)
_LIKE_BLOCK: Final = re.compile(r"[0-9]{1,10}\.(?:blk.+|new)", re.DOTALL)
_CONSUMER_SUM: Final = "no server loads the consumer without a checksum"


@dataclass(frozen=True)
class RepairStep:
    stream: str  #: account and name
    change: Change
    reason: str

    @property
    def action(self) -> str:
        return "write" if isinstance(self.change.action, WriteChange) else "move"

    def as_json(self) -> dict[str, str]:
        return {"stream": self.stream, "file": self.change.path, "action": self.action, "reason": self.reason}


@dataclass
class StreamRepairPlan:
    source: Source
    rules: Sequence[ServerRules]
    steps: list[RepairStep] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  #: what cannot be repaired without a loss; names are safe
    before: list[DirectoryForecast] = field(default_factory=list)  #: starts now, one for each of the rules
    after: list[DirectoryForecast] = field(default_factory=list)  #: starts on the repaired directory


def plan_stream_repair(
    source: Source, rules: Sequence[ServerRules], now: int, progress: Progress = lambda _size: None
) -> StreamRepairPlan:
    """Plans the repair of every stream, and forecasts the starts before and after it; `now` is their time."""
    plan = StreamRepairPlan(source, rules)
    surveys: dict[str, StreamSurvey] = {}

    def survey(stream: StoredStream) -> StreamSurvey:
        name = str(stream.path)
        if name not in surveys:
            surveys[name] = StreamSurvey(stream, progress)
        return surveys[name]

    def start(stream: StoredStream, root: Path) -> list[DirectoryForecast]:
        return [forecast_directory([stream], root, each, now=now, survey=survey) for each in rules]

    found: list[tuple[list[DirectoryForecast], list[DirectoryForecast]]] = []
    for stream in source.streams:
        before = after = start(stream, source.place)
        accepted: list[RepairStep] = []
        for steps in _groups(stream, source.place):
            with _shadow(stream, source.place, [*accepted, *steps]) as (shadow, root):
                tried = start(shadow, root)
                renews = any(each.action == "write" for each in steps)
                reason = _objection(survey(stream), StreamSurvey(shadow, progress), before, tried, renews=renews)
            if reason:
                what = ", ".join(escape(each.change.path) for each in steps)
                plan.refusals.append(f"{what}: {reason}; `stantools salvage STORE --out NEW` keeps all that is intact")
            else:
                accepted += steps
                after = tried
        plan.steps += accepted
        found.append((before, after))
    for row, each in enumerate(rules):
        plan.before.append(merged_forecast(each.version, [before[row] for before, _ in found]))
        plan.after.append(merged_forecast(each.version, [after[row] for _, after in found]))
    return plan


def _objection(
    survey: StreamSurvey,
    repaired: StreamSurvey,
    before: Sequence[DirectoryForecast],
    after: Sequence[DirectoryForecast],
    *,
    renews: bool,
) -> str:
    """Returns why the steps of a stream are not taken; empty if they can lose nothing."""
    if lost := survey.intact - repaired.intact:
        return f"{counted(lost.count(), 'intact message')} would be gone"
    for one, two in zip(before, after, strict=True):
        if renews and not all(each.loaded and not each.error for each in two.streams.values()):
            return f"nats-server {two.version} would not serve the stream then either"
        if one.starts and not two.starts:
            return f"nats-server {two.version} would not start any more"
        destroyed = [Ranges.union(each.loss.destroyed for each in some.streams.values()) for some in (one, two)]
        if worse := destroyed[1] - destroyed[0]:
            return f"a start of nats-server {two.version} would then destroy {counted(worse.count(), 'intact message')}"
    return ""


def _groups(stream: StoredStream, root: Path) -> Iterator[list[RepairStep]]:
    """Yields the steps of a stream; a list has steps that are taken or refused together."""
    if stream.path.name.startswith(".") or not stream.path.is_dir() or (stream.encrypted and stream.key is None):
        return
    owner = stream.full_name
    sums = [(folder, _renewed(stream, root, folder, key)) for folder, key in _configurations(stream)]
    steps = [
        RepairStep(owner, change, _CONSUMER_SUM if folder else "no server loads the stream without the right checksum")
        for folder, change in sums
        if change
    ]
    index = stream.path / MESSAGES / INDEX
    moves = []
    if index.is_file() and stream.index is None and any(each.kind is FlawKind.INDEX_HASH for each in stream.flaws):
        moves = [(index, "every server rejects and removes it, and reads the blocks")]
    leftovers = [
        (stream.path / MESSAGES / name, "2.10 takes it for a block, or does not load the stream")
        for name in sorted(stream.message_names)
        if _LIKE_BLOCK.fullmatch(name)
    ]
    if MESSAGES in stream.names and PURGING in stream.names:
        leftovers += [
            (each, "2.14 and 2.15 replace the messages by it: a purge had begun")
            for each in sorted((stream.path / PURGING).iterdir())
        ]
    moved = [
        [_move(path, root, owner, reason) for path, reason in each if path.is_file()] for each in (moves, leftovers)
    ]
    yield from filter(None, (steps, *moved))


def _configurations(stream: StoredStream) -> Iterator[tuple[str, bytes]]:
    yield "", highwayhash.stream_key(stream.path.name)
    for consumer in stream.consumers:
        if not consumer.name.startswith("."):
            yield f"obs/{consumer.name}/", highwayhash.consumer_key(stream.path.name, consumer.name)


def _renewed(stream: StoredStream, root: Path, folder: str, key: bytes) -> Change | None:
    """Returns the change by which checksum and configuration fit; None if there is none, or no need of one."""
    try:
        data, stored = stream.read(f"{folder}meta.inf"), stream.read(f"{folder}meta.sum")
    except StoreUnreadableError:
        return None
    config = stream.config
    if folder:
        config = next(each.config for each in stream.consumers if f"obs/{each.name}/" == folder)
    if data is None or stored == (proper := meta_sum(data, key)):
        return None
    if content := mended_content(stream, folder):
        return Change(
            os.path.relpath(stream.path / folder / "meta.inf", root), len(data), len(data), WriteChange(content)
        )
    if config is None:
        return None
    if not folder and config.get("name") != stream.path.name:
        return None
    if folder and config.get("durable_name", folder.split("/")[1]) != folder.split("/")[1]:
        return None
    path = os.path.relpath(stream.path / folder / "meta.sum", root)
    return Change(path, None if stored is None else len(stored), len(proper), WriteChange(proper))


def _move(path: Path, root: Path, owner: str, reason: str) -> RepairStep:
    return RepairStep(owner, Change(os.path.relpath(path, root), path.stat().st_size, None, DeleteChange()), reason)


@contextmanager
def _shadow(stream: StoredStream, root: Path, steps: Sequence[RepairStep]) -> Iterator[tuple[StoredStream, Path]]:
    """Makes a stream whose files are links to another one's, with some steps taken, in a private directory."""
    changes = {each.change.path: each.change.action for each in steps}
    with tempfile.TemporaryDirectory(prefix="stantools-repair-") as folder:
        place = Path(folder, "jetstream", stream.account, "streams", stream.path.name)
        for base, _, names in os.walk(stream.path):
            target = place / os.path.relpath(base, stream.path)
            target.mkdir(parents=True)
            for name in names:
                file = Path(base, name)
                if os.path.relpath(file, root) not in changes:
                    (target / name).symlink_to(file.absolute())
        for path, action in changes.items():
            if isinstance(action, WriteChange):
                (place / os.path.relpath(root / path, stream.path)).write_bytes(action.data)
        yield replace(stream, path=place, flaws=[]), Path(folder, "jetstream")


@dataclass(frozen=True)
class StreamRepairResult:
    backup: Path | None
    changed: tuple[str, ...]
    after: list[DirectoryForecast]  #: starts on the repaired directory, forecast again


def apply_stream_repair(
    plan: StreamRepairPlan, backup_dir: Path, now: int, *, force: bool = False, quiet: float | None = None
) -> StreamRepairResult:
    """Takes the steps of a plan, the backup first; see `recovery.truncate.apply` for the errors."""
    root = plan.source.place
    changes = [each.change for each in plan.steps]
    backup = apply_changes(root, changes, backup_dir, "repair", force=force, quiet=quiet)
    for each in changes:
        path = root / each.path
        if isinstance(each.action, WriteChange):
            _adopt(path, path.with_name("meta.inf"))
        elif path.parent.name == PURGING:
            with suppress(OSError):
                path.parent.rmdir()
    streams = [replace(each, flaws=[]) for each in plan.source.streams]
    survey = cache(StreamSurvey)
    after = [
        merged_forecast(
            each.version, [forecast_directory([one], root, each, now=now, survey=survey) for one in streams]
        )
        for each in plan.rules
    ]
    return StreamRepairResult(backup, tuple(each.path for each in changes), after)


def _adopt(path: Path, like: Path) -> None:
    """Gives a file the mode and, where permitted, the owner of the one beside it."""
    status = like.stat()
    with writing(path):
        path.chmod(status.st_mode & 0o777)
        with suppress(PermissionError):
            os.chown(path, status.st_uid, status.st_gid)
