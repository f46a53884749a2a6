"""The kinds of directories: file stores and their channels, nodes of a cluster, and directories of other programs."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.escaping import shell_word
from stantools.notation import some_of
from stantools.sources import jetstream, sql
from stantools.sources.nodes import find_node
from stantools.sources.source import (
    NAME_STORE,
    Capability,
    PathFacts,
    RecognisedPath,
    Source,
    SourceKind,
    SourceRequest,
    is_file,
)
from stantools.sources.store_search import MAX_DIRECTORIES, holds_channel
from stantools.store.directory import Datastore, open_datastore
from stantools.store.names import CLIENTS_FILE, SERVER_FILE
from stantools.store.nodes import NodeFiles
from stantools.store.read_options import prepare_store

_CHANNEL_USES: Final = frozenset(
    {
        Capability.OVERVIEW,
        Capability.SURVEY,
        Capability.MESSAGES,
        Capability.SUBSCRIPTIONS,
        Capability.HISTORY,
        Capability.SALVAGE,
        Capability.COMPARISON,
        Capability.TABLE,
        Capability.TASKS,
    }
)
_STORE_USES: Final = frozenset(Capability)
_NODE_USES: Final = frozenset(
    {
        Capability.OVERVIEW,
        Capability.SURVEY,
        Capability.MESSAGES,
        Capability.SUBSCRIPTIONS,
        Capability.FORECAST,
        Capability.MERGE,
        Capability.MIGRATION,
        Capability.COMPARISON,
        Capability.TABLE,
        Capability.TASKS,
    }
)


def _recognise_node(facts: PathFacts) -> RecognisedPath | None:
    try:
        node = find_node(facts.path)
    except NotPermittedError:
        raise
    except StoreUnreadableError:
        if several := _recognise_nodes(facts):
            return several
        raise
    if node is None:
        return None
    word = shell_word(str(facts.path))
    several_ = f"`stantools merge {word} --out NEW`, with the other nodes named after it, makes one store"
    if node.data is None:
        return RecognisedPath(
            NODE, facts.path, "", f"`stantools info {word}` shows its Raft log, {several_}", nodes=(node,)
        )
    remedy = f"`stantools doctor {shell_word(str(node.data))}` is about its store alone; {several_}"
    return RecognisedPath(NODE, facts.path, "", remedy, nodes=(node,))


def _recognise_nodes(facts: PathFacts) -> RecognisedPath | None:
    """Recognises the directory around the nodes of a cluster."""
    path = facts.path
    logs, _ = facts.below
    nodes = list(dict.fromkeys(path / each.relative_to(path).parts[0] for each in logs if each != path))
    if len(nodes) < 2:
        return None
    listed = some_of([each.name for each in nodes], 5)
    words = " ".join(shell_word(str(each)) for each in nodes)
    remedy = (
        f"`stantools merge {words} --out NEW` makes one store of them; `stantools forecast {words}` predicts a start"
    )
    return RecognisedPath(NODES, path, f" ({len(nodes)}: {listed})", remedy, stores=tuple(nodes))


def _open_node(found: RecognisedPath, request: SourceRequest) -> Source:
    return Source(found, request.read_options, found.path, nodes=found.nodes)


def _open_nodes(found: RecognisedPath, request: SourceRequest) -> Source:
    nodes = [node for each in found.stores if (node := find_node(each))]
    return Source(found, request.read_options, found.path, nodes=tuple(nodes))


def _recognise_store(facts: PathFacts) -> RecognisedPath | None:
    store = facts.datastore
    return RecognisedPath(STORE, facts.path, stores=(facts.path,), datastore=store) if store else None


def _open_store(found: RecognisedPath, request: SourceRequest) -> Source:
    assert found.datastore
    store = prepare_store(found.datastore, request.read_options, request.channels)
    return Source(found, request.read_options, found.path, store)


def _recognise_parent(facts: PathFacts) -> RecognisedPath | None:
    path, (_, stores) = facts.path, facts.below
    if not stores:
        return None
    shown = shell_word(str(stores[0]))
    if len(stores) == 1:
        return RecognisedPath(
            PARENT, path, f": {stores[0]}", f"name the store: `stantools doctor {shown}`", (stores[0],)
        )
    listed = some_of([str(each.relative_to(path)) for each in stores], 5)
    remedy = f"name one: `stantools doctor {shown}`; or all of them: `stantools verify {shell_word(str(path))}`"
    return RecognisedPath(SEVERAL, path, f" ({len(stores)}: {listed})", remedy, tuple(stores))


def _open_parent(found: RecognisedPath, request: SourceRequest) -> Source:
    (store,) = found.stores
    opened = _open_store(RecognisedPath(STORE, store, stores=(store,), datastore=open_datastore(store)), request)
    opened.notes.append(f"{found.path} {found.kind.says}; reading the store in it, {store}")
    return opened


def _recognise_channel(facts: PathFacts) -> RecognisedPath | None:
    path, names = facts.path, facts.names
    if not holds_channel(names):
        return None
    place = path.absolute()
    shown, channel = path.parent if path.name and path.parent != path else place.parent, place.name
    if not any(is_file(place.parent / each) for each in (SERVER_FILE, CLIENTS_FILE)):
        remedy = "look for its store, in backups and copies"
        detail = f": {channel}; the store around it is not there"
        return RecognisedPath(CHANNEL, path, detail, remedy, inner=channel)
    store, word = shell_word(str(shown)), shell_word(channel)
    remedy = f"`stantools messages {store} {word}` prints it; for all of the store: `stantools doctor {store}`"
    return RecognisedPath(CHANNEL, path, f": {channel} of {shown}", remedy, (shown,), inner=channel)


def _open_channel(found: RecognisedPath, request: SourceRequest) -> Source:
    """Opens the store around a channel with this channel alone; without a store, the channel is the store."""
    if found.stores:
        whole, notes = open_datastore(found.stores[0]), []
    else:
        whole = Datastore(found.path.absolute().parent, alone=True)
        notes = [
            f"{found.path} {found.sentence}: clients are unknown, so subscriptions look like those of unknown ones"
        ]
    store = replace(whole, channel_names=[found.inner], system_names=[], symlinks=[])
    prepare_store(store, request.read_options, request.channels)
    return Source(found, request.read_options, found.path, store, notes=notes)


def _recognise_empty(facts: PathFacts) -> RecognisedPath | None:
    if not has_no_files(facts.path):
        return None
    node, kind, remedy = NodeFiles(facts.path, None, None), EMPTY, NAME_STORE
    if jetstream.FOLDER in (facts.path.absolute().name, *facts.names):
        kind, remedy = EMPTY_STREAMS, "name the directory that is `store_dir` of the server, or a copy of it"
    return RecognisedPath(kind, facts.path, "", remedy, nodes=(node,))


def has_no_files(path: Path) -> bool:
    """Returns whether there are only directories below a path."""
    return all(each.is_dir() for each in islice(path.rglob("*"), MAX_DIRECTORIES))


def _recognise_other(facts: PathFacts) -> RecognisedPath | None:
    streaming = f"NATS Streaming ({SERVER_FILE}, {CLIENTS_FILE}, a channel directory)"
    detail = f": no file of {streaming} and no stream of JetStream is in it"
    return RecognisedPath(OTHER, facts.path, detail, NAME_STORE)


STORE = SourceKind("is a file store", _recognise_store, _open_store, _STORE_USES)
PARENT = SourceKind("holds a file store, but is not one itself", _recognise_parent, _open_parent)
SEVERAL = SourceKind("holds several file stores", _recognise_parent)
CHANNEL = SourceKind("is the folder of one channel, not a store", _recognise_channel, _open_channel, _CHANNEL_USES)
NODE = SourceKind("is a clustered node", _recognise_node, _open_node, _NODE_USES)
NODES = SourceKind(
    "holds several clustered nodes",
    _recognise_nodes,
    _open_nodes,
    frozenset({Capability.FORECAST, Capability.MERGE, Capability.MIGRATION}),
)
EMPTY = SourceKind("is an empty directory, not a store", _recognise_empty, _open_node, frozenset({Capability.MERGE}))
EMPTY_STREAMS = SourceKind(
    "is a JetStream store directory without any file in it", _recognise_empty, _open_node, EMPTY.capabilities
)
OTHER = SourceKind("is not a store", _recognise_other)

#: in the order in which they are tried
KINDS: Final = (
    NODE,
    STORE,
    jetstream.BACKUP,
    jetstream.JETSTREAM,
    jetstream.BACKUPS,
    CHANNEL,
    NODES,
    sql.PG_ARCHIVE,
    PARENT,
    jetstream.AROUND,
    EMPTY,
    OTHER,
)
