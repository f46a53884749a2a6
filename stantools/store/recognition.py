"""Paths that are not file stores: their kind, and the command that works with them.

Every kind of path that a user may give by mistake is named here, and only here. Little is read: names of
directories, and the first bytes of a file.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from stantools.escaping import shell_word
from stantools.notation import some_of
from stantools.store.names import (
    CLIENTS_FILE,
    INDEX_NAME,
    MANIFEST_FILE,
    RAFT_LOG_FILE,
    SERVER_FILE,
    SLICE_NAME,
    SUBS_FILE,
    is_system_name,
)


class PathKind(Enum):
    MISSING = "no such directory"
    URL = "is the URL of a server, not a directory"
    FILE_OF_STORE = "is a single file of a file store"
    RAFT_LOG = "is the Raft log of a clustered node"
    ARCHIVE = "is an archive"
    COMPRESSED = "is a compressed file"
    SQL_DUMP = "is a SQL dump"
    SQLITE = "is an SQLite database"
    SPECIAL = "is not a regular file"
    FILE = "is a file, expected the directory of a file store"
    EMPTY = "is an empty directory, not a file store"
    PARENT = "holds a file store, but is not one itself"
    SEVERAL = "holds several file stores"
    CHANNEL = "is the folder of one channel, not a store"
    NODE = "is a clustered node"
    NODES = "holds several clustered nodes"
    RAFT = "holds the raft log of a clustered node"
    JETSTREAM = "is a JetStream store directory, of a nats-server"
    BACKUP = "is a backup of a JetStream stream"
    DIRECTORY = "is not a file store"


@dataclass(frozen=True)
class RecognisedPath:
    kind: PathKind
    detail: str = ""  #: continues the sentence about its kind
    remedy: str = ""  #: the command that works with it
    instead: Path | None = None  #: the path to name instead, for the same verb

    @property
    def sentence(self) -> str:
        """The predicate of a sentence whose subject is the path."""
        return self.kind.value + self.detail


_NAME_STORE: Final = "name the directory given to the server as -dir"
_TAR: Final = "tar -xf {path} -C {to}"
#: First bytes of a file, with the name of the format and the command that unpacks it.
_ARCHIVES: Final = (
    (b"\x1f\x8b", "gzip", _TAR),
    (b"PK\x03\x04", "zip", "unzip -q {path} -d {to}"),
    (b"PK\x05\x06", "zip", "unzip -q {path} -d {to}"),
    (b"\x28\xb5\x2f\xfd", "zstd", "tar --zstd -xf {path} -C {to}"),
    (b"\xfd7zXZ\0", "xz", _TAR),
    (b"BZh", "bzip2", _TAR),
    (b"7z\xbc\xaf\x27\x1c", "7z", "7z x {path} -o{to}"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc {path} | tar -x -C {to}"),
)
_COMPRESSED_TARS: Final = (".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_SQL_WORDS: Final = ("--", "/*", "create ", "insert ", "drop ", "set ", "begin", "pragma ", "use ", "lock tables")
_SQLITE: Final = b"SQLite format 3\0"
_SQL_REMEDY: Final = (
    "stantools reads file stores only. Load it into its database, and start nats-streaming-server with -st SQL on "
    "that: it serves the channels to clients, which can publish them to a server with -st FILE"
)
_HEAD: Final = 512
#: compressed bytes that contain the first bytes: bzip2 has blocks of up to 900 KB
_COMPRESSED_HEAD: Final = 1 << 20
_SCHEMES: Final = ("nats:", "tls:", "ws:", "wss:", "http:", "https:")
#: Maximum number and depth of the directories that are searched for stores below a path.
_MAX_DIRECTORIES: Final = 2000
_DEPTH: Final = 3


def recognise(path: Path) -> RecognisedPath:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.parts[:1] and path.parts[0] in _SCHEMES:
            url = f"{path.parts[0]}//{'/'.join(path.parts[1:])}"
            remedy = f"look at a running server: `stantools tui --server {shell_word(url)}`"
            return RecognisedPath(PathKind.URL, "", remedy)
        return RecognisedPath(PathKind.MISSING, "", _NAME_STORE)
    except OSError as error:
        return RecognisedPath(PathKind.DIRECTORY, f": {error.strerror}", _NAME_STORE)
    if stat.S_ISDIR(mode):
        return _directory(path)
    if stat.S_ISREG(mode):
        return _file(path)
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return RecognisedPath(PathKind.SPECIAL, f" but {kinds.get(stat.S_IFMT(mode), 'something else')}", _NAME_STORE)


def _file(path: Path) -> RecognisedPath:
    word = shell_word(str(path))
    if path.name == RAFT_LOG_FILE:
        return RecognisedPath(
            PathKind.RAFT_LOG, "", f"`stantools info {word}` shows it, `stantools records {word}` prints it"
        )
    if of_store := _file_of_store(path):
        remedy = f"`stantools records {word}`"
        for place in (path.parent, path.parent.absolute().parent):
            if any(_is_file(place / name) for name in (SERVER_FILE, CLIENTS_FILE)):
                remedy += f"; for its whole store: `stantools doctor {shell_word(str(place))}`"
                break
        return RecognisedPath(PathKind.FILE_OF_STORE, of_store, remedy)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        return RecognisedPath(PathKind.FILE, f" (and cannot be read: {error.strerror})", _NAME_STORE)
    if archive := _archive(path, head):
        return archive
    if head.startswith(_SQLITE):
        return RecognisedPath(PathKind.SQLITE, "", _SQL_REMEDY)
    if path.suffix.lower() == ".sql" or _is_sql(head):
        return RecognisedPath(PathKind.SQL_DUMP, "", _SQL_REMEDY)
    remedy = f"name the directory that holds {SERVER_FILE}; for a single file of a store: `stantools records {word}`"
    return RecognisedPath(PathKind.FILE, "", remedy)


def _file_of_store(path: Path) -> str:
    kinds = {
        SERVER_FILE: "of the server",
        CLIENTS_FILE: "of the clients",
        SUBS_FILE: f"of the subscriptions of the channel {path.absolute().parent.name}",
    }
    if name := kinds.get(path.name):
        return f": that {name}"
    if match := SLICE_NAME.fullmatch(path.name) or INDEX_NAME.fullmatch(path.name):
        what = "a slice of messages" if ".dat" in path.name else "the index of a slice"
        return f": {what}, {'archived, ' if match[2] else ''}of the channel {path.absolute().parent.name}"
    return ""


def _archive(path: Path, head: bytes) -> RecognisedPath | None:
    found = next(((name, unpack) for magic, name, unpack in _ARCHIVES if head.startswith(magic)), None)
    if head[257:262] == b"ustar" or (found is None and _is_old_tar(path, head)):
        found = "tar", _TAR
    if found is None:
        return None
    name, unpack = found
    inner = _unpacked_head(path, name)
    if inner is not None and inner[257:262] != b"ustar":
        if _is_sql(inner) or ".sql" in path.suffixes:
            return RecognisedPath(PathKind.SQL_DUMP, f" ({name})", _SQL_REMEDY)
        return RecognisedPath(PathKind.COMPRESSED, f" ({name})", "unpack it, and name the unpacked directory")
    to = shell_word(f"{_stem(path)}.unpacked")
    command = f"mkdir {to} && {unpack.format(path=shell_word(str(path)), to=to)} && stantools doctor {to}"
    return RecognisedPath(PathKind.ARCHIVE, f" ({name})", f"unpack it, and check its content: `{command}`")


def _unpacked_head(path: Path, name: str) -> bytes | None:
    """Returns the first bytes in a compressed file; None for an unknown compression."""
    import bz2
    import lzma

    inflated = {"gzip": zlib.decompressobj(31).decompress, "bzip2": bz2.BZ2Decompressor().decompress}
    inflate = {**inflated, "xz": lzma.LZMADecompressor().decompress}.get(name)
    if inflate is None:
        return None
    try:
        with path.open("rb") as file:
            return inflate(file.read(_COMPRESSED_HEAD), _HEAD)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return None  # it is truncated or damaged, which unpacking will report


def _is_sql(head: bytes) -> bool:
    text = head.decode("latin-1").lstrip("\xef\xbb\xbf \t\r\n").lower()
    return text.startswith(_SQL_WORDS) and "\0" not in text


def _is_old_tar(path: Path, head: bytes) -> bool:
    with suppress(OSError, tarfile.TarError):
        return len(head) == _HEAD and path.suffix == ".tar" and tarfile.is_tarfile(path)
    return False


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (*_COMPRESSED_TARS, path.suffix):
        if suffix and name.lower().endswith(suffix.lower()):
            return str(path.with_name(name[: -len(suffix)] or name))
    return str(path)


def _directory(path: Path) -> RecognisedPath:
    names = _names_in(path)
    if names is None:
        return RecognisedPath(PathKind.DIRECTORY, "", _NAME_STORE)
    for look in (_backup, _jetstream, _channel):
        if found := look(path, names):
            return found
    if not names:
        return RecognisedPath(PathKind.EMPTY, "", _NAME_STORE)
    logs, stores = _search_below(path)
    if logs:
        return _node(path, logs, stores)
    if len(stores) == 1:
        shown = shell_word(str(stores[0]))
        return RecognisedPath(
            PathKind.PARENT, f": {stores[0]}", f"name the store: `stantools doctor {shown}`", stores[0]
        )
    if stores:
        listed = some_of([str(each.relative_to(path)) for each in stores], 5)
        remedy = f"name one: `stantools doctor {shell_word(str(stores[0]))}`; or all of them: "
        return RecognisedPath(
            PathKind.SEVERAL,
            f" ({len(stores)}: {listed})",
            f"{remedy}`stantools pipeline verify {shell_word(str(path))}`",
        )
    detail = f": neither {SERVER_FILE} nor {CLIENTS_FILE} nor a channel directory is in it"
    return RecognisedPath(PathKind.DIRECTORY, detail, _NAME_STORE)


def _backup(path: Path, names: set[str]) -> RecognisedPath | None:
    if "backup.json" in names and any(each.startswith("stream.tar") for each in names):
        command = f"nats stream restore {shell_word(str(path))}"
        return RecognisedPath(PathKind.BACKUP, "", f"restore it into a server with the tool `nats`: `{command}`")
    return None


def _jetstream(path: Path, names: set[str]) -> RecognisedPath | None:
    """Recognises the store directory of a nats-server, from its root down to one stream."""
    if "meta.inf" in names and ("msgs" in names or "meta.sum" in names):
        what, root = f", one stream of it: {path.absolute().name}", path.absolute().parent.parent.parent
    elif any(each.endswith(".blk") for each in names):
        what, root = ", the blocks of one stream of it", path.absolute().parent.parent.parent.parent
    elif "streams" in names and _holds_streams(path / "streams"):
        what, root = f", one account of it: {path.absolute().name}", path.absolute().parent
    elif path.name == "streams" and _holds_streams(path):
        what, root = ", the streams of one account of it", path.absolute().parent.parent
    elif any(_holds_streams(path / each / "streams") for each in sorted(names)[:_MAX_DIRECTORIES]):
        what, root = "", path.absolute()
    elif "jetstream" in names and (inner := _names_in(path / "jetstream")):
        if not any(_holds_streams(path / "jetstream" / each / "streams") for each in sorted(inner)[:_MAX_DIRECTORIES]):
            return None
        what, root = "", path.absolute() / "jetstream"
    else:
        return None
    place, copy = shell_word(str(root)), shell_word(f"{root.name}.copy".lstrip("-"))
    remedy = (
        "stantools reads stores of NATS Streaming. A server opens a copy of it: "
        f"`mkdir {copy} && cp -a {place} {copy}/jetstream && stan-broker -js -sd {copy}`, or a nats-server with -sd"
    )
    return RecognisedPath(PathKind.JETSTREAM, what, remedy)


def _holds_streams(directory: Path) -> bool:
    names = _names_in(directory) or ()
    return any(
        _names_in(directory / each / "msgs") is not None or _is_file(directory / each / "meta.inf") for each in names
    )


def _channel(path: Path, names: set[str]) -> RecognisedPath | None:
    if SUBS_FILE not in names and not any(SLICE_NAME.fullmatch(each) for each in names):
        return None
    place = path.absolute()
    shown, channel = path.parent if path.name and path.parent != path else place.parent, place.name
    if not any(_is_file(place.parent / each) for each in (SERVER_FILE, CLIENTS_FILE)):
        remedy = f"look at its messages: `stantools pipeline verify {shell_word(str(path))}`"
        return RecognisedPath(PathKind.CHANNEL, f": {channel}; the store around it is not there", remedy)
    store, word = shell_word(str(shown)), shell_word(channel)
    remedy = f"`stantools messages {store} {word}` prints it; for all of the store: `stantools doctor {store}`"
    return RecognisedPath(PathKind.CHANNEL, f": {channel} of {shown}", remedy)


def _node(path: Path, logs: list[Path], stores: list[Path]) -> RecognisedPath:
    nodes = list(dict.fromkeys(path / each.relative_to(path).parts[0] for each in logs if each != path))
    if len(nodes) > 1:
        listed = some_of([each.name for each in nodes], 5)
        words = " ".join(shell_word(str(each)) for each in nodes)
        remedy = f"`stantools merge {words} --out NEW` makes one store of them; `stantools info {words}` compares them"
        return RecognisedPath(PathKind.NODES, f" ({len(nodes)}: {listed})", remedy)
    word = shell_word(str(path))
    several = f"`stantools merge {word} --out NEW`, with the other nodes named after it, makes one store"
    log = logs[0].relative_to(path) / RAFT_LOG_FILE
    if not stores:
        remedy = f"`stantools info {word}` shows it, {several}"
        return RecognisedPath(PathKind.RAFT, f" ({log}), not a file store", remedy)
    store = stores[0]
    detail = f": its Raft log is {log}, its file store {store.relative_to(path)}"
    remedy = f"`stantools doctor {shell_word(str(store))}` is about its store, `stantools info {word}` about the node; "
    return RecognisedPath(PathKind.NODE, detail, remedy + several)


def _search_below(path: Path) -> tuple[list[Path], list[Path]]:
    """Returns the directories below a path that have a Raft log, and those that are file stores, nearest first."""
    logs: list[Path] = []
    stores: list[Path] = []
    level, seen = [path], 0
    for _ in range(_DEPTH + 1):
        deeper: list[Path] = []
        for directory in level:
            names = _names_in(directory) or set()
            if RAFT_LOG_FILE in names:
                logs.append(directory)
            elif names & {SERVER_FILE, CLIENTS_FILE, MANIFEST_FILE}:
                stores.append(directory)
            elif SUBS_FILE in names or any(SLICE_NAME.fullmatch(each) for each in names):
                if directory.parent not in stores:
                    stores.append(directory.parent)
            else:
                deeper += _directories(directory)
        seen += len(deeper)
        level = deeper if seen <= _MAX_DIRECTORIES else []
    return logs, stores


def _directories(path: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(path) as entries:
        for each in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
            if each.is_dir(follow_symlinks=False) and not is_system_name(each.name):
                yield path / each.name


def _names_in(path: Path) -> set[str] | None:
    try:
        return {each.name for each in path.iterdir()}
    except OSError:
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
