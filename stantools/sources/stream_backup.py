"""Backups of a stream: `backup.json`, and its files as an archive in frames; older or unpacked ones are a plain tar."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stantools.errors import StoreUnreadableError, StoreUnwritableError
from stantools.escaping import beside, shell_word, show_as
from stantools.sources.private_copy import private_directory, remove, renamed_stream
from stantools.sources.source import NO_ACCOUNT, RecognisedPath, Source, SourceRequest
from stantools.store.mapping import mapped
from stantools.streamfiles import s2
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.framing import IDENTIFIER, ByteSource, read_files, unframe
from stantools.streamfiles.layout import ArchiveError

_GZIP: Final = b"\x1f\x8b"
_PIECE: Final = 1 << 20
#: files of an archive
_MAX_FILES: Final = 1 << 20


def open_backup(found: RecognisedPath, request: SourceRequest, archive: Path) -> Source:
    """Unpacks a backup into a private directory, as far as it goes."""
    flaws: list[str] = []
    place = private_directory()
    root = place / found.path.absolute().name
    try:
        root.mkdir()
        _unpack(archive, root, flaws)
        if not any(root.iterdir()):
            raise StoreUnreadableError(f"{root.name}: nothing of the backup can be read", "look for another copy of it")
        stream = renamed_stream(root)
    except OSError as error:
        remove(place)
        raise StoreUnwritableError(
            f"{archive}: its content cannot be unpacked: {error.strerror}", "set TMPDIR to a directory with more space"
        ) from error
    except BaseException:
        remove(place)
        raise
    show_as(stream, str(archive), "", str(found.path))
    streams = (StoredStream(stream, NO_ACCOUNT, None),)
    new = shell_word(str(beside(found.path, "salvaged")))
    unpack = f"stantools salvage {shell_word(str(found.path))} --out {new}"  # tar does not read frames
    source = Source(found, request.read_options, found.path, streams=streams, unpack=unpack, flaws=flaws)
    source.copied = stream
    source.release = lambda: remove(place)
    return source


def _unpack(archive: Path, root: Path, flaws: list[str]) -> None:
    with mapped(archive, sequential=True) as content:
        pieces: Iterator[bytes | memoryview] = (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
        if bytes(content[:2]) == _GZIP:
            with gzip.open(archive) as file:
                _unpack_files(iter(lambda: file.read(_PIECE), b""), archive, root, flaws)
        elif bytes(content[:10]) in (IDENTIFIER, s2.IDENTIFIER):
            _unpack_files(unframe(pieces, str(archive)), archive, root, flaws)  # type: ignore[arg-type]
        else:
            _unpack_files(pieces, archive, root, flaws)


def _unpack_files(pieces: Iterator[bytes | memoryview], archive: Path, root: Path, flaws: list[str]) -> None:
    try:
        for number, file in enumerate(read_files(ByteSource(iter(pieces), str(archive)), folders=True)):
            parts = Path(file.name).parts
            if number == _MAX_FILES or not parts or ".." in parts or Path(file.name).is_absolute():
                raise ArchiveError(f"{archive}: {file.name!r} does not belong into a backup")
            path = root.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
    except (ArchiveError, gzip.BadGzipFile, EOFError) as problem:
        flaws.append(f"the archive is cut or damaged: {problem}; what follows is unknown")
