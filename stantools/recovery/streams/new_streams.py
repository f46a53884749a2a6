"""Writing salvaged streams: the store directory of a stand-alone nats-server, or a backup of each stream; and a check.

The new directory appears when it is complete. The check reads it as a source is read, and compares every message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stantools.progress import Progress
from stantools.recovery.place import check_outside, check_room
from stantools.recovery.recovery_options import SalvageTarget
from stantools.recovery.streams.record_files import BlockFileRecords, ChosenRecords, MessagesDigest
from stantools.recovery.streams.stream_plan import SalvagedStream, StreamSalvagePlan
from stantools.sources.jetstream import ARCHIVE, REQUEST
from stantools.store.atomic import new_directory
from stantools.store.durable import write_all
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.flaws import FlawKind
from stantools.streamfiles.meta import ArchiveState
from stantools.streamfiles.record_batch import RecordBatch
from stantools.streamfiles.survey import StreamSurvey

_DIRECTORY_MODE: Final = 0o700


@dataclass
class StreamSalvageResult:
    path: Path
    digests: dict[str, bytes] = field(default_factory=dict)  #: of the messages, by account and stream
    problems: list[str] = field(default_factory=list)  #: what the check found; a mistake of this program

    @property
    def good(self) -> bool:
        return not self.problems


def write_streams(
    plan: StreamSalvagePlan, out: Path, to: SalvageTarget, progress: Progress | None = None
) -> StreamSalvageResult:
    """Writes the streams of a plan as a store directory or as backups; `progress` is called with bytes."""
    return (write_backups if to is SalvageTarget.BACKUP else write_store)(plan, out, progress)


def write_store(plan: StreamSalvagePlan, out: Path, progress: Progress | None = None) -> StreamSalvageResult:
    """Writes the store directory of a nats-server; it appears when it is complete, and is read back."""
    result = StreamSalvageResult(out)
    with _new(plan, out) as content:
        for stream in plan.streams:
            target = content / "jetstream" / stream.account / "streams" / stream.name
            target.mkdir(parents=True, mode=_DIRECTORY_MODE)
            digest = MessagesDigest()
            archive = stream.archive()
            for name, data in archive.members(_watched(stream, digest, progress), stream.entries, stream.last):
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
                _write(path, data)
            for folder in ("msgs", "obs"):
                (target / folder).mkdir(exist_ok=True, mode=_DIRECTORY_MODE)
            result.digests[stream.full_name] = digest.value()
        for folder, _, _ in os.walk(content / "jetstream"):
            Path(folder).chmod(_DIRECTORY_MODE)
    for stream in plan.streams:
        path = out / "jetstream" / stream.account / "streams" / stream.name
        result.problems += _differences(stream, path, result.digests[stream.full_name])
    return result


def write_backups(plan: StreamSalvagePlan, out: Path, progress: Progress | None = None) -> StreamSalvageResult:
    """Writes a backup of each stream, which `nats stream restore` takes; each of several accounts has a folder."""
    result = StreamSalvageResult(out)
    several = len({each.account for each in plan.streams}) > 1
    with _new(plan, out) as content:
        for stream in plan.streams:
            target = content / stream.account / stream.name if several else content / stream.name
            target.mkdir(parents=True)
            digest = MessagesDigest()
            archive = stream.archive()
            with (target / ARCHIVE).open("xb") as file:
                for piece in archive.pieces(_watched(stream, digest, progress), stream.entries, stream.last):
                    file.write(piece)
            text = json.dumps(request(stream, archive.state), indent=2, ensure_ascii=False)
            (target / REQUEST).write_text(text + "\n", encoding="utf-8")
            result.digests[stream.full_name] = digest.value()
    return result


def request(stream: SalvagedStream, state: ArchiveState) -> dict[str, Any]:
    """Returns the request for a restore, as a backup has it."""
    config = {name: value for name, value in stream.config.members.items() if name != "Created"}
    return {"config": config, "state": state.as_json() | {"consumer_count": len(stream.consumers)}}


def _new(plan: StreamSalvagePlan, out: Path) -> Any:
    for place in plan.places:
        check_outside(place, out)
    check_room(out, plan.bytes)
    return new_directory(out, untouched=f"{plan.source} is as it was")


def _watched(stream: SalvagedStream, digest: MessagesDigest, progress: Progress | None) -> Iterator[RecordBatch]:
    for batch in stream.chosen.read():
        digest.add(batch)
        yield batch
        if progress:
            progress(int(batch.length.sum()))


def _write(path: Path, data: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _differences(stream: SalvagedStream, path: Path, digest: bytes) -> Iterator[str]:
    """Reads a new stream back, and yields deviations from the plan."""
    directory = StoredStream(path, stream.account)
    survey = StreamSurvey(directory)
    for flaw in (*directory.flaws, *survey.flaws):
        if flaw.kind is not FlawKind.INDEX_MISSING:  # a server writes it
            yield f"{stream.full_name}: {flaw.file}: {flaw.detail}"
    if survey.intact != stream.recovered:
        yield f"{stream.full_name}: it has other messages than planned"
    if survey.last != stream.last:
        yield f"{stream.full_name}: it ends at {survey.last} instead of {stream.last}"
    if directory.config != stream.config.members:
        yield f"{stream.full_name}: it has another configuration than planned"
    found = {each.name: (each.config, each.state) for each in directory.consumers}
    if found != {each.name: (each.config.members, each.state) for each in stream.consumers}:
        yield f"{stream.full_name}: it has other consumers than planned"
    read = ChosenRecords([(BlockFileRecords(survey, each, each.name), each.sequences) for each in survey.blocks])
    again = MessagesDigest()
    for batch in read.read():
        again.add(batch)
    if again.value() != digest:
        yield f"{stream.full_name}: its messages are not those that were read"
