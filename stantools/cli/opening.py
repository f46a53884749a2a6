"""Opening the input of a verb: a store, the nodes of a cluster, one channel, a single file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.errors import NotPermittedError, StoreUnreadableError, UsageError
from stantools.format.crc import IEEE, Crc
from stantools.store import read_options as datastores
from stantools.store.directory import SERVER_FILE, ChannelFiles, Datastore, open_datastore
from stantools.store.locks import check_not_in_use, log_lock_holder
from stantools.store.mapping import Buffer
from stantools.store.nodes import NodeFiles, find_node, node_of
from stantools.store.read_options import ReadOptions, polynomial_name, resolve_file_crc

if TYPE_CHECKING:
    from stantools.migration.source import SourceOptions, StoreSource

#: Environment variable with the default store.
STORE_VARIABLE = "STANTOOLS_STORE"
_NODES = "stantools.nodes"
_WRITTEN = "data being written may look damaged"


def usual_store(ctx: click.Context) -> str | None:
    """Returns the default store and notes it on stderr; None if there is none.

    It is that of STANTOOLS_STORE, else the current directory or `./datastore` if that is a store. Remedies name it
    from then on.
    """
    if named := os.environ.get(STORE_VARIABLE):
        console.note(f"no STORE was given: using {console.escape(named)} from {STORE_VARIABLE}")
        console.set_store(ctx, named)
        return named
    for path in (Path(), Path("datastore")):
        try:
            open_datastore(path)
        except StoreUnreadableError:
            continue
        shown = f"the current directory, {path.absolute()}" if path == Path() else f"./{path}"
        console.note(f"no STORE was given: using {console.escape(shown)}")
        console.set_store(ctx, str(path))
        return str(path)
    return None


def open_store(path: Path, read_options: ReadOptions, channels: Sequence[str] = ()) -> Datastore:
    """Opens a store; notes an unusual CRC and skipped files.

    `channels` are patterns of the channels to read; empty for all.
    """
    store = datastores.open_store(path, read_options, channels)
    if read_options.accept_unreadable:
        try:
            store.check_permitted(store.matching(channels))
        except NotPermittedError as problem:
            console.warning(f"{problem.message}: left out, so their content is not checked", problem.remedy)
    _tell_polynomial(store.crc, read_options)
    if console.is_verbose():
        console.note(
            f"{len(store.channel_names)} channel directories, CRC polynomial {polynomial_name(store.crc.polynomial)}"
        )
    return store


def describe_node(ctx: click.Context, text: str) -> str:
    """Takes a node as --node describes it; returns the path under which `node_at` knows it."""
    node = node_of(text)
    if node.raft is None:
        return str(node.data)  # a store by itself
    if ctx.meta.setdefault(_NODES, {}).setdefault(node.path, node) is not node:
        raise ValueError(f"two nodes are called {node.path}")
    return str(node.path)


def node_at(path: Path, *, history: bool = False) -> NodeFiles | None:
    """Returns the clustered node whose directories are at or below a path; None for a store or nothing.

    Notes a running node, whose data being written may look damaged. With `history`, raises `UsageError` for a node.
    """
    node = _node_at(path)
    if node and history:
        raise UsageError(
            "a clustered node keeps no history of single records",
            "stantools records FILE prints the entries of its raft.log",
        )
    if node and node.raft and (pid := log_lock_holder(node.raft)) is not None:
        console.warning(f"{console.escape(str(node.path))}: process {pid} is running this node: {_WRITTEN}")
    return node


def _node_at(path: Path) -> NodeFiles | None:
    described: dict[Path, NodeFiles] = click.get_current_context().meta.get(_NODES, {})
    node = described.get(path) or find_node(path)
    if node and console.is_verbose():
        console.note(f"a clustered node: Raft directory {node.raft}, file store {node.data or 'not here'}")
    return node


def are_nodes(paths: Sequence[Path]) -> bool:
    """Returns whether paths are parts of one cluster: several, or one with a Raft log."""
    return len(paths) > 1 or _node_at(paths[0]) is not None


def part_of_node(path: Path) -> NodeFiles:
    """Returns the node whose Raft directory, file store or both are at a path, which may not exist yet."""
    if node := _node_at(path):
        return node
    if path.is_dir() and all(each.is_dir() for each in path.rglob("*")):
        return NodeFiles(path, None, None)
    stores = [path] if (path / SERVER_FILE).exists() else sorted(each.parent for each in path.glob(f"*/{SERVER_FILE}"))
    return NodeFiles(path, None, open_datastore(stores[0] if len(stores) == 1 else path).path)


def check_stopped(nodes: Iterable[NodeFiles], *, force: bool) -> None:
    """Refuses nodes in use, whose files would differ in age; with `force`, only warns."""
    for node in nodes:
        for path in (node.raft, node.data):
            for use in check_not_in_use(path, force=force) if path else ():
                console.warning(f"{use.detail}: {_WRITTEN}")


def read_store(store: Datastore, source_options: SourceOptions) -> StoreSource:
    """Reads the selected data of a store for a migration; warns if a server seems to be using it."""
    from stantools.cli.progress import ByteProgress
    from stantools.migration.workflow import read_source, signs_of_use

    for note in signs_of_use(store.path):
        console.warning(note.text, note.remedy)
    names = store.chosen(source_options.patterns)
    with ByteProgress("read", store.data_size(names)) as shown:
        return read_source(store, source_options, progress=shown.advance)


def merge_nodes(
    nodes: Sequence[NodeFiles], read_options: ReadOptions, source_options: SourceOptions, *, running: bool
) -> StoreSource:
    """Reads the selected data of a cluster's nodes for a migration; unless `running`, they must have stopped."""
    from stantools.cli.progress import ByteProgress
    from stantools.migration.source import open_merged

    check_stopped(nodes, force=running)
    with ByteProgress("read") as shown:
        return open_merged(nodes, read_options, source_options, progress=shown.advance)


def store_of_node(node: NodeFiles, reason: str) -> Path:
    """Returns the file store of a node; `reason` tells the user the reason for needing one."""
    if node.data is None:
        raise StoreUnreadableError(
            f"{node.path}: the file store of the node is missing, but needed: {reason}",
            "stantools info, subs and verify show its Raft log",
        )
    return node.data


def file_crc(path: Path, buffer: Buffer, read_options: ReadOptions) -> Crc:
    """Determines the CRC of a single file; notes an unusual one."""
    crc = resolve_file_crc(path, buffer, read_options)
    _tell_polynomial(crc, read_options)
    return crc


def _tell_polynomial(crc: Crc, read_options: ReadOptions) -> None:
    if read_options.polynomial is None and crc.polynomial != IEEE:
        console.note(f"the CRC polynomial of this store is {polynomial_name(crc.polynomial)}")


def open_channel(store: Datastore, name: str) -> ChannelFiles:
    """Lists one channel of a store; raises `StoreUnreadableError` if it does not exist."""
    if name in store.channel_names:
        return store.channel(name)
    close = difflib.get_close_matches(name, store.channel_names, n=3)
    have = close or store.channel_names[:5]
    listed = ", ".join(map(console.escape, have)) + ("" if close or len(store.channel_names) <= 5 else ", …")
    raise StoreUnreadableError(
        f"{console.escape(str(store.path))}: no channel {console.escape(name)}",
        f"{'did you mean' if close else 'its channels are'}: {listed}" if have else "the store has no channels",
    )
