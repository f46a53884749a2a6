"""Opening the input of a verb: a source, one channel of it, a single file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stantools.cli import console
from stantools.cli.progress import ByteProgress
from stantools.errors import NotPermittedError, StoreUnreadableError, UsageError
from stantools.escaping import shell_word
from stantools.format.crc import IEEE, Crc
from stantools.sources import directories, files
from stantools.sources.door import open_recognised, recognise
from stantools.sources.jetstream import JETSTREAM, copy_note, node_copies
from stantools.sources.nodes import node_of
from stantools.sources.source import Capability, RecognisedPath, Source, SourceRequest
from stantools.store.directory import ChannelFiles, Datastore
from stantools.store.locks import StoreUse, check_not_in_use, log_lock_holder
from stantools.store.mapping import Buffer
from stantools.store.nodes import NodeFiles
from stantools.store.read_options import ReadOptions, polynomial_name, resolve_file_crc

if TYPE_CHECKING:
    from stantools.migration.source import SourceOptions, StoreSource

#: Environment variable with the default store.
STORE_VARIABLE = "STANTOOLS_STORE"
_NODES = "stantools.nodes"
#: kinds that are taken where no STORE is given
_STORES = (directories.STORE, directories.NODE, JETSTREAM)


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
            if recognise(path).kind not in _STORES:
                continue
        except StoreUnreadableError:
            continue
        shown = f"the current directory, {path.absolute()}" if path == Path() else f"./{path}"
        console.note(f"no STORE was given: using {console.escape(shown)}")
        console.set_store(ctx, str(path))
        return str(path)
    return None


def no_store() -> UsageError:
    """Returns the error of a verb without STORE, of which there is no default."""
    found = recognise(Path())
    verb = " ".join(click.get_current_context().command_path.split())
    first = console.escape(shell_word(str(found.stores[0]))) if found.stores else ""
    remedy = f"name one: `{verb} {first}`" if first else found.remedy
    return UsageError(
        f"no STORE was given, and the current directory {found.sentence}", f"{remedy}; see: {verb} --help"
    )


def open_source(
    path: Path,
    read_options: ReadOptions,
    *uses: Capability,
    channels: Sequence[str] = (),
    found: RecognisedPath | None = None,
) -> Source:
    """Opens a source for the uses of a verb; notes what the user should know of it.

    `channels` are patterns of the channels to read; empty for all. `found` is the path, if it is recognised already.
    """
    ctx = click.get_current_context()
    nodes: dict[Path, NodeFiles] = ctx.meta.get(_NODES, {})
    if node := nodes.get(path):
        source = node_source(node, read_options)
    else:
        with ByteProgress("unpack") as shown:
            request = SourceRequest(read_options, channels, progress=shown.advance)
            source = open_recognised(found or recognise(path), request)
    ctx.find_root().call_on_close(source.release)
    source.require(*uses)
    source.choose_rows(*uses)
    if source.path != path:
        console.set_store(ctx, source.shown)
    _tell_source(ctx, source, source.path)
    for node in source.nodes:
        if console.is_verbose():
            console.note(f"a clustered node: Raft directory {node.raft}, file store {node.data or 'not here'}")
        if node.raft and (pid := log_lock_holder(node.raft)) is not None:
            use = StoreUse("lock", f"{console.escape(str(node.path))}: process {pid} is running this node", pid)
            console.warning(use.warning)
    if source.datastore:
        _tell_store(source.datastore, read_options, channels)
    return source


def open_file(path: Path, read_options: ReadOptions) -> Path:
    """Returns the path of a single file; for a file in an archive, `ARCHIVE/FILE`, that of a private copy."""
    if path.is_dir() or (found := recognise(path)).kind is not files.ARCHIVE:
        return path
    from stantools.sources.archived_store import open_archived_file

    ctx = click.get_current_context()
    with ByteProgress("unpack") as shown:
        source = open_archived_file(found, SourceRequest(read_options, progress=shown.advance))
    ctx.find_root().call_on_close(source.release)
    _tell_source(ctx, source, path)
    return source.path


def _tell_source(ctx: click.Context, source: Source, path: Path) -> None:
    for note in source.notes:
        console.note(note)
    for flaw in source.flaws:
        console.warning(f"{path}: {flaw}")
        ctx.meta[console.FLAWED] = True


def is_archive(found: RecognisedPath) -> bool:
    return found.kind in (files.ARCHIVE, files.ARCHIVE_PART)


def check_tasks(found: RecognisedPath) -> None:
    """Raises `UsageError` for a source that tasks of Spark cannot read."""
    if is_archive(found):
        raise UsageError(
            f"{found.path}: an archive is unpacked on this machine only, but tasks of Spark may run elsewhere",
            "leave out the options for Spark, or unpack the archive where all workers can read it",
        )
    if found.kind.capabilities and Capability.TASKS not in found.kind.capabilities:
        raise UsageError(found.refusal(Capability.TASKS).message, "leave out the options for Spark")


def described(path: str) -> bool:
    """Returns whether a path is the name of a node that --node describes."""
    return Path(path) in click.get_current_context().meta.get(_NODES, {})


def recognise_named(path: str, uses: Collection[Capability]) -> dict[str, RecognisedPath | None]:
    """Recognises one of several paths; a folder of nodes is its nodes, if a verb reads each by itself.

    None for a node that --node describes, and for a path that cannot be read: opening it raises the error.
    """
    if described(path):
        return {path: None}
    try:
        found = recognise(Path(path))
    except StoreUnreadableError:
        return {path: None}
    apart = directories.NODE.capabilities.issuperset(uses)
    if found.kind is directories.NODES and apart and not found.kind.capabilities.issuperset(uses):
        return {str(each): recognise(each) for each in found.stores}
    return {path: found}


def open_named(
    path: str,
    found: RecognisedPath | None,
    read_options: ReadOptions,
    *uses: Capability,
    channels: Sequence[str] = (),
    alone: bool = False,
) -> Source | None:
    """Opens one of several sources; None for a pattern, a URL, or anything that a search has to look into.

    `alone`: it is the only one, and an error names what it looks like.
    """
    from stantools.pipeline.tables.listing import is_pattern

    if found:
        own = (found.datastore.server, found.datastore.clients) if found.datastore else ()
        # A directory that is a store only by its channels: other stores may be beside these.
        lost_its_files = found.kind is directories.STORE and not any(own)
        if found.kind.open is None:
            searched = "://" in path or is_pattern(path) or found.kind is directories.SEVERAL
            if searched or not alone:
                return None
        elif not alone and (
            lost_its_files or (found.kind is directories.NODE and not found.kind.capabilities.issuperset(uses))
        ):
            return None  # the search finds its stores
    return open_source(Path(path), read_options, *uses, channels=channels, found=found)


def node_source(node: NodeFiles, read_options: ReadOptions) -> Source:
    """Returns a node that the user described as a source."""
    return Source(RecognisedPath(directories.NODE, node.path, nodes=(node,)), read_options, node.path, nodes=(node,))


def open_sources(paths: Sequence[Path], read_options: ReadOptions, use: Capability) -> list[Source]:
    """Opens a store, or the nodes of one cluster; only a merge reads copies of a node as well."""
    copies = {} if use is Capability.MERGE else node_copies(paths)
    for copy, node in copies.items():
        console.note(copy_note(copy, node))
    paths = [each for each in paths if each not in copies]
    sources = [open_source(path, read_options, use) for path in paths]
    kinds = [all(each.nodes for each in sources), all(each.holds_streams for each in sources)]
    if len(sources) > 1 and use is not Capability.MERGE and not any(kinds):
        raise UsageError("only nodes of a cluster are read together", "name one store, or directories of nodes")
    return sources


def nodes_of(sources: Sequence[Source]) -> list[NodeFiles]:
    """Returns the nodes of several sources, or of one that is a node; none for one store."""
    return [node for each in sources for node in each.parts()] if len(sources) > 1 or sources[0].nodes else []


def _tell_store(store: Datastore, read_options: ReadOptions, channels: Sequence[str]) -> None:
    """Notes an unusual CRC and skipped files."""
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


def describe_node(ctx: click.Context, text: str) -> str:
    """Takes a node as --node describes it; returns the path under which `open_source` knows it."""
    node = node_of(text)
    if node.raft is None:
        return str(node.data)  # a store by itself
    if ctx.meta.setdefault(_NODES, {}).setdefault(node.path, node) is not node:
        raise ValueError(f"two nodes are called {node.path}")
    return str(node.path)


def check_stopped(sources: Iterable[Source], *, force: bool) -> None:
    """Refuses sources in use, whose files would differ in age; with `force`, only warns."""
    for source in sources:
        for path in () if source.archived else source.places():
            for use in check_not_in_use(path, force=force):
                console.warning(use.warning)


def read_source(
    sources: Sequence[Source], read_options: ReadOptions, source_options: SourceOptions, *, running: bool
) -> StoreSource:
    """Reads the selected data of a store or of a cluster's nodes; unless `running`, nodes must have stopped."""
    from stantools.migration import workflow
    from stantools.migration.source import open_merged

    if nodes := nodes_of(sources):
        check_stopped(sources, force=running)
        with ByteProgress("read") as shown:
            return open_merged(nodes, read_options, source_options, progress=shown.advance)
    store = sources[0].store()
    for note in () if sources[0].archived else workflow.signs_of_use(store.path):
        console.warning(note.text, note.remedy)
    with ByteProgress("read", store.data_size(store.chosen(source_options.patterns))) as shown:
        return workflow.read_source(store, source_options, progress=shown.advance)


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
