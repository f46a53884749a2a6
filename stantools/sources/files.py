"""The kinds of paths that are no directories: archives, single files, files of other programs, URLs."""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from stantools.escaping import shell_word
from stantools.sources import sql
from stantools.sources.source import (
    NAME_STORE,
    ArchiveFormat,
    PathFacts,
    RecognisedPath,
    Source,
    SourceKind,
    SourceRequest,
    is_file,
)
from stantools.store.names import CLIENTS_FILE, INDEX_NAME, SERVER_FILE, SLICE_NAME, SUBS_FILE

_TAR: Final = "tar -xf {path} -C {to}"
_UNZIP: Final = "unzip -q {path} -d {to}"
#: First bytes of a file, with the name of the format and the command that unpacks it.
_ARCHIVES: Final = (
    (b"\x1f\x8b", "gzip", _TAR),
    (b"PK\x03\x04", "zip", _UNZIP),
    (b"PK\x05\x06", "zip", _UNZIP),
    (b"\x28\xb5\x2f\xfd", "zstd", "tar --zstd -xf {path} -C {to}"),
    (b"\xfd7zXZ\0", "xz", _TAR),
    (b"BZh", "bzip2", _TAR),
    (b"7z\xbc\xaf\x27\x1c", "7z", "7z x {path} -o{to}"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc {path} | tar -x -C {to}"),
)
#: formats that are named but not read
_NOT_READ: Final = ("7z", "lz4")
_COMPRESSED_TARS: Final = (".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_SCHEMES: Final = ("nats:", "tls:", "ws:", "wss:", "http:", "https:")
_SPECIAL: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _recognise_inner(facts: PathFacts) -> RecognisedPath | None:
    """Recognises a path inside an archive: `ARCHIVE/PATH`."""
    for file in facts.path.parents if not facts.mode else ():
        if is_file(file):
            if found := _recognise_archive(PathFacts(file)):
                return replace(found, inner=str(facts.path.relative_to(file)))
            break
    return None


def _recognise_schema(facts: PathFacts) -> RecognisedPath | None:
    """Recognises one of several stores in a dump: `FILE?schema=NAME`."""
    file, schema = sql.file_of(facts.path)
    if facts.mode or not schema or not is_file(file):
        return None
    inner = PathFacts(file)
    found = _recognise_archive(inner) or sql.recognise_sql(inner)
    return replace(found, path=facts.path) if found and found.kind is sql.DUMP else None


def _recognise_url(facts: PathFacts) -> RecognisedPath | None:
    parts = facts.path.parts
    if facts.mode or not parts or parts[0] not in _SCHEMES:
        return None
    url = f"{parts[0]}//{'/'.join(parts[1:])}"
    remedy = f"look at a running server: `stantools tui --server {shell_word(url)}`"
    return RecognisedPath(URL, facts.path, "", remedy, url=url)


def _recognise_missing(facts: PathFacts) -> RecognisedPath | None:
    if facts.mode:
        return None
    if facts.error:
        return RecognisedPath(UNREADABLE, facts.path, f": {facts.error.strerror}", NAME_STORE)
    return RecognisedPath(MISSING, facts.path, "", NAME_STORE)


def _recognise_special(facts: PathFacts) -> RecognisedPath | None:
    if stat.S_ISREG(facts.mode):
        return None
    what = _SPECIAL.get(stat.S_IFMT(facts.mode), "something else")
    return RecognisedPath(SPECIAL, facts.path, f" but {what}", NAME_STORE)


def _recognise_file_of_store(facts: PathFacts) -> RecognisedPath | None:
    path = facts.path
    kinds = {
        SERVER_FILE: "of the server",
        CLIENTS_FILE: "of the clients",
        SUBS_FILE: f"of the subscriptions of the channel {path.absolute().parent.name}",
    }
    if name := kinds.get(path.name):
        detail = f": that {name}"
    elif match := SLICE_NAME.fullmatch(path.name) or INDEX_NAME.fullmatch(path.name):
        what = "a slice of messages" if ".dat" in path.name else "the index of a slice"
        detail = f": {what}, {'archived, ' if match[2] else ''}of the channel {path.absolute().parent.name}"
    else:
        return None
    return RecognisedPath(
        FILE_OF_STORE, path, detail, f"`stantools records {shell_word(str(path))}`" + _store_above(path.parent)
    )


def _store_above(directory: Path) -> str:
    for place in (directory, directory.absolute().parent):
        if any(is_file(place / name) for name in (SERVER_FILE, CLIENTS_FILE)):
            return f"; for its whole store: `stantools doctor {shell_word(str(place))}`"
    return ""


def _recognise_archive(facts: PathFacts) -> RecognisedPath | None:
    path, head = facts.path, facts.head
    found = next(((name, unpack) for magic, name, unpack in _ARCHIVES if head.startswith(magic)), None)
    if _is_tar(head) or (found is None and path.suffix == ".tar" and len(head) == 512 and not any(head)):
        found = "tar", _TAR
    if found is None and _ends_as_zip(path):
        found = "zip", _UNZIP
    if found is None:
        return None
    name, unpack = found
    inner = unpacked_head(path, name)
    if inner is not None and not _is_tar(inner):
        if sql.is_sql(inner) or ".sql" in path.suffixes:
            return sql.dump_of(path, name)
        if any(inner) or not path.name.lower().endswith(_COMPRESSED_TARS):
            return RecognisedPath(COMPRESSED, path, f" ({name})", "unpack it, and name the unpacked directory")
    to = shell_word(f"{_stem(path)}.unpacked")
    archive = ArchiveFormat(name, f"mkdir {to} && {unpack.format(path=shell_word(str(path)), to=to)}", to)
    kind = OTHER_ARCHIVE if name in _NOT_READ else ARCHIVE
    remedy = f"unpack it, and check its content: `{archive.check}`"
    return RecognisedPath(kind, path, f" ({name})", remedy, archive=archive)


def unpacked_head(path: Path, name: str) -> bytes | None:
    """Returns the first bytes in a compressed file; None for an unknown compression, or one that is damaged."""
    from stantools.sources.decompression import COMPRESSIONS, Decompressed

    if name not in COMPRESSIONS:
        return None
    with suppress(Exception), Decompressed(path, name) as stream:  # whatever is wrong is reported when it is read
        head = stream.read(512)
        return head or None
    return None


def _ends_as_zip(path: Path) -> bool:
    """Returns whether the directory of a zip is at the end of a file, whose beginning may be damaged or cut."""
    import zipfile

    return is_file(path) and zipfile.is_zipfile(path)


def _is_tar(head: bytes) -> bool:
    """Returns whether a tar's header is at the beginning: by its name, or in older formats by its checksum."""
    if head[257:262] == b"ustar":
        return True
    with suppress(ValueError):
        written = int(head[148:156].strip(b" \0") or b"x", 8)
        return len(head) == 512 and head[0] != 0 and sum(head[:148]) + 256 + sum(head[156:]) == written
    return False


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (*_COMPRESSED_TARS, path.suffix):
        if suffix and name.lower().endswith(suffix.lower()):
            return str(path.with_name(name[: -len(suffix)] or name))
    return str(path)


def _open_archive(found: RecognisedPath, request: SourceRequest) -> Source:
    from stantools.sources.archived_store import open_archive

    return open_archive(found, request)


def _recognise_file(facts: PathFacts) -> RecognisedPath | None:
    word = shell_word(str(facts.path))
    remedy = f"{NAME_STORE}; for a single file of a store: `stantools records {word}`"
    return RecognisedPath(FILE, facts.path, "", remedy)


URL = SourceKind("is the URL of a server, not a directory", _recognise_url)
MISSING = SourceKind("no such directory", _recognise_missing)
UNREADABLE = SourceKind("is not a store", _recognise_missing)
SPECIAL = SourceKind("is not a regular file", _recognise_special)
FILE_OF_STORE = SourceKind("is a single file of a file store", _recognise_file_of_store)
ARCHIVE = SourceKind("is an archive", _recognise_archive, _open_archive)
ARCHIVE_PART = SourceKind("is a part of an archive", _recognise_inner, _open_archive)
OTHER_ARCHIVE = SourceKind("is an archive", _recognise_archive)
COMPRESSED = SourceKind("is a compressed file", _recognise_archive)
SCHEMA = SourceKind("is a SQL dump", _recognise_schema)
FILE = SourceKind("is a file, expected the directory of a store", _recognise_file)

#: kinds of a path that is no directory, in the order in which they are tried
KINDS: Final = (
    *(sql.DATABASE, URL, ARCHIVE_PART, SCHEMA, MISSING, SPECIAL, FILE_OF_STORE, sql.PG_ARCHIVE, ARCHIVE),
    *(sql.DUMP, FILE),
)
