"""Reading streams that lie on disk: backups, and streams in the store of a stopped server. Every hash is checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stantools.errors import StoreUnreadableError
from stantools.inspection.catalogue import finding
from stantools.inspection.findings import Finding
from stantools.migration.archive.errors import ArchiveError
from stantools.migration.archive.reader import ArchiveReader, Records, StreamReader
from stantools.migration.archive.state import ArchiveState
from stantools.migration.archive.tar import MAX_FILE_SIZE, TarFile
from stantools.migration.archive.writer import ConsumerEntry

#: The files of a backup.
REQUEST = "backup.json"
ARCHIVE = "stream.tar.s2"

_PIECE = 1 << 20
_REQUEST_MAX = 16 << 20
_BLOCK = re.compile(r"([1-9][0-9]{0,9})\.blk")
_CONSUMER_FILES = ("meta.inf", "meta.sum", "o.dat")


@dataclass
class Written:
    """A stream as it lies on disk.

    Attributes:
        stream: Its name, empty if it cannot be read.
        config: Its configuration in `meta.inf`.
        state: What a server will say of it, as far as it could be read.
        consumers: Its consumers.
        whole: It was read to its end.
        findings: What is wrong.
        request: What a backup has in `backup.json`: the configuration and state that a server will be asked for.
    """

    stream: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    state: ArchiveState = field(default_factory=ArchiveState)
    consumers: Sequence[ConsumerEntry] = ()
    whole: bool = False
    findings: list[Finding] = field(default_factory=list)
    request: Mapping[str, Any] = field(default_factory=dict)


def check_backup(directory: Path, take: Callable[[Records], None] | None = None) -> Written:
    """Reads a backup to its end: every hash, and whether the request in it belongs to the archive.

    Args:
        directory: The directory with the two files.
        take: Gets the records as they are read.

    Raises:
        StoreUnreadableError: A file cannot be read, or is not there.
    """
    written = Written()
    try:
        written.request = _request(directory / REQUEST)
    except ArchiveError as problem:
        written.findings.append(finding("archive-damaged", problem.message, file=REQUEST))
    archive = directory / ARCHIVE
    _read(lambda: ArchiveReader(_pieces(archive), str(archive)), written, ARCHIVE, take)
    if written.request and written.whole and (wrong := "; ".join(_request_differences(written))):
        detail = f"{directory / REQUEST} does not belong to the archive beside it: {wrong}"
        written.findings.append(finding("archive-damaged", detail, file=REQUEST))
    return written


def check_stream_directory(directory: Path, take: Callable[[Records], None] | None = None) -> Written:
    """Reads the directory of a stream in a server's store to its end.

    Args:
        directory: The directory.
        take: Gets the records as they are read.

    Raises:
        StoreUnreadableError: A file cannot be read.
    """
    written = Written()
    _read(lambda: StreamReader(_files(directory), str(directory)), written, directory.name, take)
    return written


def _read(
    opened: Callable[[], StreamReader], written: Written, file: str, take: Callable[[Records], None] | None
) -> None:
    try:
        reader = opened()
        written.stream, written.config = reader.stream, reader.config
        for records in reader.records():
            written.state = reader.state
            if take:
                take(records)
    except ArchiveError as problem:
        written.findings.append(finding("archive-damaged", problem.message, file=file))
        return
    written.state, written.consumers = reader.state, reader.consumers
    written.whole = True


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    except OSError as problem:
        raise _unreadable(path, problem) from problem


def _files(directory: Path) -> Iterator[TarFile]:
    """The files of a stream's directory as an archive would have them; a server keeps others beside them."""
    blocks = {int(match[1]): path for path in _listed(directory / "msgs") if (match := _BLOCK.fullmatch(path.name))}
    paths = [directory / "meta.inf", directory / "meta.sum", *(blocks[number] for number in sorted(blocks))]
    paths += [path / name for path in _listed(directory / "obs") for name in _CONSUMER_FILES]
    for path in paths:
        if path.exists():
            yield TarFile(path.relative_to(directory).as_posix(), _content(path))


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir()) if directory.is_dir() else []
    except OSError as problem:
        raise _unreadable(directory, problem) from problem


def _content(path: Path) -> bytearray:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_SIZE:
            raise ArchiveError(f"{path} has {size} bytes, at most {MAX_FILE_SIZE} are expected")
        return bytearray(path.read_bytes())
    except OSError as problem:
        raise _unreadable(path, problem) from problem


def _request(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            request = json.loads(file.read(_REQUEST_MAX))
    except OSError as problem:
        raise _unreadable(path, problem) from problem
    except (ValueError, RecursionError) as problem:
        raise ArchiveError(f"{path} is not JSON: {problem}") from problem
    if not isinstance(request, dict) or not all(isinstance(request.get(name), dict) for name in ("config", "state")):
        raise ArchiveError(f"{path} does not hold a config and a state")
    return request


def _request_differences(written: Written) -> Iterator[str]:
    """What the request of a backup says and its archive does not."""
    config, state = written.request["config"], written.request["state"]
    if config.get("name") != written.stream:
        yield f"it is for stream {config.get('name')!r}, the archive holds {written.stream!r}"
    for name, value in {**written.state.as_json(), "consumer_count": len(written.consumers)}.items():
        if state.get(name) != value:
            yield f"{name} is {state.get(name)!r}, in the archive {value!r}"


def _unreadable(path: Path, problem: OSError) -> StoreUnreadableError:
    return StoreUnreadableError(f"{path}: cannot be read: {problem.strerror}", "check that the file is there")
