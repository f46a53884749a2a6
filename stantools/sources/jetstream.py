"""The kinds of JetStream directories: what a nats-server keeps on disk, from its root to one stream, and backups.

Layout and names: jetstream-store.md sections 1, 11 and 12.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stantools.errors import NotAStoreError, NotPermittedError
from stantools.escaping import beside, shell_word
from stantools.notation import counted, some_of
from stantools.sources.source import (
    NO_ACCOUNT,
    Capability,
    PathFacts,
    RecognisedPath,
    Source,
    SourceKind,
    SourceRequest,
    is_file,
    names_in,
)
from stantools.sources.store_search import MAX_DEPTH, MAX_DIRECTORIES, DirectoryNames, list_directories
from stantools.store.names import is_system_name
from stantools.store.permissions import check_permitted, directories_below, is_closed

if TYPE_CHECKING:
    from stantools.streamfiles.directory import StoredStream
    from stantools.streamfiles.raft_group import RaftGroup

FOLDER: Final = "jetstream"
SYSTEM: Final = "$SYS"
RAFT: Final = "_js_"
#: files of a stream without which its blocks cannot be read
META_FILES: Final = ("meta.inf", "meta.sum", "meta.key")
#: files of a backup, as the official command line names them
REQUEST: Final = "backup.json"
ARCHIVE: Final = "stream.tar.s2"
#: bytes of a Raft group's meta.inf that tell one node's from another's
_MARK: Final = 64
#: bytes of a configuration that are searched, and what a stream of a cluster has in it
_META: Final = 1 << 20
_SEVERAL_REPLICAS: Final = re.compile(rb'"num_replicas":\s*[2-9]')
#: directories from the folder of several nodes down to a stream
_LEVELS: Final = 5
_BACKUP_USES: Final = frozenset(
    {
        *(Capability.OVERVIEW, Capability.SURVEY, Capability.MESSAGES, Capability.SUBSCRIPTIONS),
        *(Capability.SALVAGE, Capability.MERGE, Capability.MIGRATION),
        *(Capability.TABLE, Capability.COMPARISON),
    }
)
_USES: Final = _BACKUP_USES | {Capability.FORECAST, Capability.CHANGE, Capability.PAGE}


def _recognise_jetstream(facts: PathFacts) -> RecognisedPath | None:
    """Recognises the store directory of a nats-server, from its root down to one stream."""
    path, names = facts.path, facts.names
    if "meta.inf" in names and ("msgs" in names or "meta.sum" in names):
        what, root = f", one stream of it: {path.absolute().name}", path.absolute().parent.parent.parent
    elif any(each.endswith(".blk") for each in names):
        what, root = ", the blocks of one stream of it", path.absolute().parent.parent.parent.parent
    elif "streams" in names and _holds_streams(path / "streams"):
        what, root = f", one account of it: {path.absolute().name}", path.absolute().parent
    elif path.name == "streams" and _holds_streams(path):
        what, root = ", the streams of one account of it", path.absolute().parent.parent
    elif any(_holds_streams(path / each / "streams") for each in sorted(names)[:MAX_DIRECTORIES]):
        what, root = "", path.absolute()
    elif _is_node(path):
        what, root = "", path.absolute() / FOLDER if FOLDER in names else path.absolute()
    elif nodes := node_places(path):
        copies = len(node_copies(nodes))
        what, root = f", {counted(len(nodes) - copies, 'node')} of a cluster", path.absolute()
        what += f", and {copies} {'copy' if copies == 1 else 'copies'} of a node" if copies else ""
    elif FOLDER in names and (inner := names_in(path / FOLDER)):
        accounts = [path / FOLDER / each for each in sorted(inner)[:MAX_DIRECTORIES]]
        nested = FOLDER in inner and any(
            _holds_streams(path / FOLDER / FOLDER / each / "streams") for each in names_in(path / FOLDER / FOLDER) or ()
        )
        if not nested and not any(_holds_streams(each / "streams") for each in accounts):
            _check_around(path, names)
            return None
        what, root = "", path.absolute() / FOLDER
    else:
        _check_around(path, names)
        return None
    if SYSTEM in (names_in(root) or ()) and not what and root in (path.absolute(), path.absolute() / FOLDER):
        what = " and one node of a cluster"
    place, copy = shell_word(str(root)), shell_word(f"{root.name}.copy".lstrip("-"))
    remedy = (
        f"`stantools info {shell_word(str(path))}` shows its streams; a server opens a copy of it: "
        f"`mkdir {copy} && cp -a {place} {copy}/jetstream && stan-broker -js -sd {copy}`, or a nats-server with -sd"
    )
    if "one stream" in what and not (root / path.absolute().relative_to(root).parts[0] / "streams").is_dir():
        word = shell_word(str(path))  # it lies where no server looks for it
        remedy = (
            f"`stantools salvage {word} --out {shell_word(str(beside(path, 'salvaged')))}` writes a store directory"
        )
    return RecognisedPath(JETSTREAM, path, what, remedy)


def _holds_streams(directory: Path) -> bool:
    names = names_in(directory) or ()
    return any(
        names_in(directory / each / "msgs") is not None or is_file(directory / each / "meta.inf") for each in names
    )


def _is_node(path: Path) -> bool:
    """Returns whether a path is a store directory with Raft groups, or the folder in it."""
    return any(names_in(folder / SYSTEM / RAFT) is not None for folder in (path, path / FOLDER))


def node_places(path: Path) -> list[Path]:
    """Returns the directories of nodes in a folder of several; at least one of them is that of a clustered server."""
    below = sorted(names_in(path) or ())
    if SYSTEM in below or FOLDER in below:
        return []
    places = [path / each for each in below[:MAX_DIRECTORIES] if _is_node(path / each) or _holds_store(path / each)]
    return places if len(places) > 1 and any(_is_node(each) or _is_replicated(each) for each in places) else []


def _is_replicated(path: Path) -> bool:
    """Returns whether the configuration of a stream below a store directory asks for several replicas."""
    for _, stream in islice(stream_places(path), MAX_DIRECTORIES):
        with contextlib.suppress(OSError), (stream / "meta.inf").open("rb") as file:
            if _SEVERAL_REPLICAS.search(file.read(_META)):
                return True
    return False


def _recognise_around(facts: PathFacts) -> RecognisedPath | None:
    """Recognises a folder around store directories, at some depth."""
    level, found, seen = [facts.path], list[Path](), 0
    for _ in range(MAX_DEPTH):
        listed = zip(level, list_directories(list(map(str, level))), strict=True)
        level = [place / each for place, names in listed for each in names.folders if not is_system_name(each)]
        stores = [each for each in level if _is_node(each) or _holds_store(each)]
        found, level = found + stores, [each for each in level if each not in stores]
        if (seen := seen + len(level)) > MAX_DIRECTORIES:
            break
    if not found:
        return None
    word = shell_word(str(found[0]))
    if len(found) == 1:
        return RecognisedPath(AROUND, facts.path, f": {found[0]}", f"name it: `stantools doctor {word}`", (found[0],))
    listed_ = some_of([str(each.relative_to(facts.path)) for each in found], 5)
    every = " ".join(shell_word(str(each)) for each in found)
    remedy = f"name one: `stantools doctor {word}`; or the nodes of one cluster: `stantools forecast {every}`"
    return RecognisedPath(SEVERAL, facts.path, f" ({len(found)}: {listed_})", remedy, tuple(found))


def _open_around(found: RecognisedPath, request: SourceRequest) -> Source:
    (store,) = found.stores
    inner = _recognise_jetstream(PathFacts(store))
    assert inner
    opened = _open_jetstream(inner, request)
    opened.notes.append(f"{found.path} {found.kind.says}; reading the one in it, {store}")
    return opened


def node_copies(nodes: Iterable[Path]) -> dict[Path, Path]:
    """Returns the directories that are copies of other nodes, and these nodes, which have the shorter names.

    Each node makes the directories of its Raft groups by itself: their meta.inf begin with different times, or with a
    random nonce. Nodes without any group are never taken for copies.
    """
    copies: dict[Path, Path] = {}
    owners: dict[tuple[str, bytes], Path] = {}
    for node in sorted(nodes, key=lambda each: (len(each.name), each.name)):
        heads = ((each.name, PathFacts(each / "meta.inf").head) for each in group_places(node)[:MAX_DIRECTORIES])
        marks = [(name, head) for name, head in heads if len(head) >= _MARK and any(head[:_MARK])]
        if owner := next((owners[each] for each in marks if each in owners), None):
            copies[node] = owner
        owners.update(dict.fromkeys(marks, owner or node))
    return copies


def copy_note(copy: Path, node: Path) -> str:
    return (
        f"{copy} is a copy of the node {node.name}, as the creation of its Raft groups shows: it is left out; "
        "`stantools merge` reads it as well, if all directories are named"
    )


def _holds_store(path: Path) -> bool:
    root = path / FOLDER
    return any(_holds_streams(root / each / "streams") for each in sorted(names_in(root) or ())[:MAX_DIRECTORIES])


def group_places(path: Path) -> list[Path]:
    """Returns the directories of the Raft groups of a node."""
    for folder in (path, path / FOLDER):
        if names := names_in(folder / SYSTEM / RAFT):
            return [folder / SYSTEM / RAFT / each for each in sorted(names)]
    return []


def stream_places(path: Path) -> Iterator[tuple[str, Path]]:
    """Yields account and directory of each stream at or below a path, also of streams that a server does not see.

    These are a directory that was copied a level too deep, and streams whose deletion was begun.
    """
    names, whole = names_in(path) or set(), path.absolute()
    if "meta.inf" in names or "msgs" in names:
        yield (whole.parent.parent.name if whole.parent.name == "streams" else NO_ACCOUNT), path
    elif any(each.endswith(".blk") for each in names):
        yield from stream_places(path.parent if path.name else whole.parent)
    elif path.name == "streams":
        yield from ((whole.parent.name, path / each) for each in sorted(names) if (path / each).is_dir())
    elif "streams" in names:
        yield from stream_places(path / "streams")
    else:
        for each in sorted(names):
            if each != SYSTEM and (each == FOLDER or names_in(path / each / "streams") is not None):
                yield from stream_places(path / each)


def _closed_around(path: Path, levels: int = _LEVELS) -> Iterator[Path]:
    """Yields the directories around streams that this user may not list."""
    if is_closed(path):
        yield path
        return
    names = names_in(path) or set()
    if not levels or path.name == "streams" or names & {"meta.inf", "msgs"}:
        return
    inner = names & {FOLDER} or names & {"streams"} or names
    for each in sorted(inner)[:MAX_DIRECTORIES]:
        if not is_system_name(each) and (path / each).is_dir():
            yield from _closed_around(path / each, levels - 1)


def _check_around(path: Path, names: Collection[str]) -> None:
    """Raises NotPermittedError if what seems to be a store directory has directories that may not be listed."""
    if FOLDER in (path.absolute().name, *names):
        check_permitted(path, (), _closed_around(path))


def _check_permitted(
    found: RecognisedPath, streams: Sequence[StoredStream], groups: Sequence[RaftGroup]
) -> NotPermittedError | None:
    """Returns the error that names what this user may not read of some streams and groups."""
    whole = not streams or streams[0].path.is_relative_to(found.path)
    places = [*(each.path for each in streams), *(each.path for each in groups)]
    inside = (directory for place in places for directory in directories_below(place))
    try:
        check_permitted(found.path if whole else streams[0].path, (), (*_closed_around(found.path), *inside))
    except NotPermittedError as problem:
        return problem
    return None


def _is_open(place: Path) -> bool:
    return not any(map(is_closed, directories_below(place)))


@dataclass(frozen=True)
class ListedStreams:
    """JetStream directories among listed ones."""

    roots: list[str] = field(
        default_factory=list
    )  #: store directories; where streams or backups are without one, these
    nodes: set[str] = field(default_factory=set)  #: of the roots, the ones that may be nodes of a cluster
    streams: set[str] = field(default_factory=set)
    blocks: list[str] = field(default_factory=list)  #: directories of blocks without the files of a stream


def listed_streams(listings: Mapping[str, DirectoryNames]) -> ListedStreams:
    """Finds JetStream directories by the names of files and folders; those around others come first in `listings`."""
    found = ListedStreams()
    roots: set[str] = set()
    for path, listed in sorted(listings.items(), key=lambda each: each[0].count("/")):
        parts = path.split("/") if path else []
        node = parts[-3:-1] == [SYSTEM, RAFT] and "meta.inf" in listed.names
        stream = "meta.inf" in listed.names and ("msgs" in listed.folders or "meta.sum" in listed.names)
        if parts and not stream and any(each.endswith(".blk") for each in listed.names):
            stream = parts[-3:-2] == ["streams"]
            if not stream:
                found.blocks.append(path)
                continue
            parts = parts[:-1]
        above = ["/".join(parts[:end]) for end in range(len(parts))]
        if (SYSTEM in parts and not node) or not found.streams.isdisjoint(above):
            continue
        if not (node or stream or (REQUEST in listed.names and archive_of(listed.names))):
            continue
        stored = node or (len(parts) > 2 and parts[-2] == "streams")
        root = "/".join(parts[:-3] if stored else parts)
        if stream and not node:
            found.streams.add("/".join(parts))
        if root not in roots and roots.isdisjoint(above):
            roots.add(root)
            found.roots.append(root)
            if stored:
                found.nodes.add(root)
    return found


def _open_jetstream(found: RecognisedPath, request: SourceRequest) -> Source:
    # loaded here: stores of NATS Streaming are opened without it
    from stantools.streamfiles.directory import StoredStream
    from stantools.streamfiles.raft_group import RaftGroup
    from stantools.streamfiles.sealing import ServerKeys

    accepts = request.read_options.accept_unreadable
    keys = (request.read_options.encryption_key,) if request.read_options.encryption_key else ()
    copies = node_copies(listed := node_places(found.path))
    nodes = {each.name: each for each in listed if each not in copies} or {"": found.path}
    places = [(node, *place) for node, path in nodes.items() for place in stream_places(path)]
    names = tuple(dict.fromkeys(place.name.removeprefix(".") for _, _, place in places))
    streams = tuple(
        StoredStream(
            place,
            account,
            ServerKeys(keys, account) if keys else None,
            other_names=names,
            node=node,
            accept_unreadable=accepts,
        )
        for node, account, place in places
    )
    groups = tuple(
        RaftGroup(place, node, keys, accept_unreadable=accepts)
        for node, path in nodes.items()
        for place in group_places(path)
    )
    chosen = [each for each in streams if each.matches(request.channels)]
    flaws = []
    if problem := _check_permitted(found, chosen, groups):
        if not accepts:
            raise problem
        streams = tuple(each for each in streams if _is_open(each.path))
        groups = tuple(each for each in groups if _is_open(each.path))
        if not streams and not groups:
            raise problem
        flaws.append(f"{problem.message}: left out, so their content is not checked")
    if not streams and not groups:
        raise NotAStoreError(
            f"{found.path}: {found.sentence}, without a stream or a Raft group in it",
            "look for its streams in copies and backups; a server that starts on it begins anew",
        )
    notes = [copy_note(*each) for each in copies.items()]
    return Source(
        found, request.read_options, found.path, streams=streams, raft_groups=groups, notes=notes, flaws=flaws
    )


def joined(sources: Sequence[Source], *, alone: bool = True) -> Source:
    """Returns the directories of several nodes as one source; `alone`: one directory is no node of several."""
    if len(sources) == 1 and (alone or any(each.node for each in sources[0].streams)):
        return sources[0]
    places = [each.path.absolute() for each in sources]
    root = Path(os.path.commonpath(places)) if len(places) > 1 else places[0].parent

    def named(source: Source, node: str) -> str:
        return "/".join(filter(None, (os.path.relpath(source.path.absolute(), root), node)))

    first = sources[0]
    streams = [replace(each, node=named(source, each.node), flaws=[]) for source in sources for each in source.streams]
    groups = [
        replace(each, node=named(source, each.node), flaws=[]) for source in sources for each in source.raft_groups
    ]
    whole = Source(first.found, first.read_options, root, streams=tuple(streams), raft_groups=tuple(groups))
    whole.members, whole.unpack = tuple(sources), " && ".join(filter(None, (each.unpack for each in sources)))
    names = {(number, each.node) for number, one in enumerate(sources) for each in one.streams}
    names |= {(number, each.node) for number, one in enumerate(sources) for each in one.raft_groups}
    whole.node_places = {named(sources[number], node): sources[number].place / node for number, node in names}
    return whole


def _recognise_backup(facts: PathFacts) -> RecognisedPath | None:
    if REQUEST in facts.names and archive_of(facts.names):
        command = f"nats stream restore {shell_word(str(facts.path))}"
        remedy = (
            f"`stantools info {shell_word(str(facts.path))}` shows the stream; "
            f"the tool `nats` restores it into a server: `{command}`"
        )
        return RecognisedPath(BACKUP, facts.path, "", remedy)
    return None


def _recognise_backups(facts: PathFacts) -> RecognisedPath | None:
    """Recognises a folder of backups, which may be in folders of accounts, as a salvage writes it."""
    folders = [facts.path, *(facts.path / each for each in sorted(facts.names)[:MAX_DIRECTORIES])]
    backups = [
        place
        for folder in folders
        for each in sorted(names_in(folder) or ())[:MAX_DIRECTORIES]
        if REQUEST in (inner := names_in(place := folder / each) or ()) and archive_of(inner)
    ]
    if not backups:
        return None
    listed = some_of([str(each.relative_to(facts.path)) for each in backups], 5)
    every = " ".join(shell_word(str(each)) for each in backups)
    remedy = f"name one: `stantools verify {shell_word(str(backups[0]))}`"
    if len(backups) > 1:
        remedy += f"; or all of them: `stantools verify {every}`"
    return RecognisedPath(BACKUPS, facts.path, f" ({len(backups)}: {listed})", remedy, tuple(backups))


def archive_of(names: Iterable[str]) -> str:
    """Returns the name of the archive in a backup; "" if there is none."""
    return min((each for each in names if each.startswith(("stream.tar", "stream.tgz"))), default="")


def _open_backup(found: RecognisedPath, request: SourceRequest) -> Source:
    from stantools.sources.stream_backup import open_backup

    return open_backup(found, request, found.path / archive_of(PathFacts(found.path).names))


_INSTEAD: Final = {
    Capability.COMPACTION: (
        "a nats-server compacts its blocks itself",
        "`stantools salvage {path} --out NEW` writes a copy without deleted messages",
    ),
    Capability.HISTORY: (
        "a nats-server keeps no history of its consumers",
        "`stantools subs {path}` shows their positions, `stantools records FILE.blk` every record of a block",
    ),
    Capability.FORECAST: (
        "no server starts on it",
        "`stantools verify {path}` reads every message of it; `nats stream restore {path}` restores it into a server",
    ),
    Capability.CHANGE: (
        "it is never changed",
        "`stantools salvage {path} --out NEW` writes what is intact to a new directory",
    ),
    Capability.TABLE: (
        "its only table is stream-messages, in files without those of other stores",
        "`stantools export {path} --table stream-messages --to NEW` writes it",
    ),
}
JETSTREAM = SourceKind(
    "is a JetStream store directory, of a nats-server", _recognise_jetstream, _open_jetstream, _USES, _INSTEAD
)
AROUND = SourceKind(
    "holds a JetStream store directory, but is not one itself", _recognise_around, _open_around, _USES, _INSTEAD
)
SEVERAL = SourceKind("holds several JetStream store directories", _recognise_around)
BACKUP = SourceKind("is a backup of a JetStream stream", _recognise_backup, _open_backup, _BACKUP_USES, _INSTEAD)
BACKUPS = SourceKind("holds backups of JetStream streams", _recognise_backups)
