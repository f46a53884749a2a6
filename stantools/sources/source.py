"""A source, its kind, and the facts by which a kind recognises a path.

A kind is one object: it recognises a path by names and first bytes, says in one sentence what the path is, opens it
if it can, and lists what the opened source is good for. `stantools.sources.door` has the kinds in order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stantools.errors import NotAStoreError, RefusedError, StoreUnreadableError, UsageError
from stantools.escaping import escape, shell_word
from stantools.progress import Progress
from stantools.sources.store_search import search
from stantools.store.directory import NAME_STORE as NAME_STORE
from stantools.store.directory import Datastore, open_datastore
from stantools.store.nodes import NodeFiles
from stantools.store.read_options import ReadOptions, open_store

if TYPE_CHECKING:
    from stantools.sqlstore.sql_store import SqlStore
    from stantools.sqlstore.tables import RowSelection
    from stantools.streamfiles.directory import StoredStream
    from stantools.streamfiles.raft_group import RaftGroup

#: account of streams on servers without accounts, and in backups, which do not tell it
NO_ACCOUNT: Final = "$G"
_HEAD: Final = 512


class Capability(enum.Enum):
    """A use of a source; the value continues "cannot be used for"."""

    OVERVIEW = "an overview of its content"
    SURVEY = "its content"
    MESSAGES = "its messages"
    SUBSCRIPTIONS = "its subscriptions and clients"
    HISTORY = "the history of single records"
    FORECAST = "a start of the server"
    SALVAGE = "a salvage"
    COMPACTION = "a compaction"
    CHANGE = "a change in place"
    PAGE = "a page about it"
    MERGE = "a merge of nodes"
    MIGRATION = "a migration"
    COMPARISON = "a comparison"
    TABLE = "a table of its messages"
    TASKS = "tasks of Spark"


class PathFacts:
    """The facts about a path, each read at most once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: OSError | None = None

    @cached_property
    def mode(self) -> int:
        """The file's mode; 0 if there is none, or `error` prevents it."""
        try:
            return self.path.stat().st_mode
        except FileNotFoundError:
            return 0
        except OSError as error:
            self.error = error
            return 0

    @cached_property
    def names(self) -> set[str]:
        return names_in(self.path) or set()

    @cached_property
    def head(self) -> bytes:
        """The first bytes of a file; none if it cannot be read."""
        with suppress(OSError), self.path.open("rb") as file:
            return file.read(_HEAD)
        return b""

    @cached_property
    def datastore(self) -> Datastore | None:
        """The store in the directory itself; None if it is none. Raises `NotPermittedError`."""
        try:
            return open_datastore(self.path)
        except NotAStoreError:
            return None

    @cached_property
    def below(self) -> tuple[list[Path], list[Path]]:
        """The directories at or below the path that have a Raft log or are file stores, nearest first."""
        found = search(str(self.path))
        return [Path(each) for each in found.logs], [Path(each) for each in found.nearest]


def names_in(path: Path) -> set[str] | None:
    try:
        return {each.name for each in path.iterdir()}
    except OSError:
        return None


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


@dataclass(frozen=True)
class SourceKind:
    says: str  #: predicate of the sentence whose subject is the path
    recognise: Callable[[PathFacts], RecognisedPath | None]
    #: Opens it; None for a kind that is only named. Raises `StantoolsError`.
    open: Callable[[RecognisedPath, SourceRequest], Source] | None = None
    capabilities: frozenset[Capability] = frozenset()
    #: Of other uses, what takes their place: a reason, and a command with {path}.
    instead: Mapping[Capability, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ArchiveFormat:
    name: str
    unpack: str  #: the command that unpacks the archive
    target: str  #: the directory in which it does, as a word of a shell

    @property
    def check(self) -> str:
        """The command that unpacks the archive, and checks its content."""
        return f"{self.unpack} && stantools doctor {self.target}"


@dataclass(frozen=True)
class RecognisedPath:
    kind: SourceKind
    path: Path
    detail: str = ""  #: continues the sentence about its kind
    remedy: str = ""  #: the command that works with it
    stores: tuple[Path, ...] = ()  #: the stores that it is about
    nodes: tuple[NodeFiles, ...] = ()  #: the nodes of a cluster that it is about
    inner: str = ""  #: path in an archive, or name of a channel
    url: str = ""  #: the URL that the path stands for, without a password
    archive: ArchiveFormat | None = None
    datastore: Datastore | None = None  #: the store, as listed

    @property
    def sentence(self) -> str:
        """The predicate of a sentence whose subject is the path."""
        return self.kind.says + self.detail

    def problem(self) -> NotAStoreError:
        return NotAStoreError(f"{self.url or self.path}: {self.sentence}", self.remedy)

    def refusal(self, use: Capability) -> NotAStoreError:
        problem = self.problem()
        reason, remedy = self.kind.instead.get(use, (f"it cannot be used for {use.value}", problem.remedy))
        return NotAStoreError(f"{problem.message}; {reason}", remedy.replace("{path}", shell_word(str(self.path))))


@dataclass(frozen=True)
class SourceRequest:
    read_options: ReadOptions = field(default_factory=ReadOptions)
    channels: Sequence[str] = ()  #: patterns of the channels to read; () for all
    #: Opens a directory that was found in the source; the door sets it.
    open: Callable[[Path, SourceRequest], Source] | None = None
    progress: Progress | None = None  #: gets the bytes of an archive that are unpacked
    rows: RowSelection | None = None  #: of a SQL store, the messages to read


@dataclass
class Source:
    found: RecognisedPath  #: its kind, and the words about it
    read_options: ReadOptions
    path: Path  #: the path from the user, or the better one that a note names
    datastore: Datastore | None = None
    nodes: tuple[NodeFiles, ...] = ()  #: nodes of a cluster; () for a store by itself
    streams: tuple[StoredStream, ...] = ()  #: of a JetStream directory
    sql: SqlStore | None = None  #: a database or a dump of one
    convert: Callable[[], Datastore] | None = None  #: writes its content into a private file store
    raft_groups: tuple[RaftGroup, ...] = ()  #: of a JetStream directory of clustered servers
    copied: Path | None = None  #: the directory to which the streams of an archive were copied
    members: tuple[Source, ...] = ()  #: the sources of nodes that it unites
    node_places: Mapping[str, Path] = field(default_factory=dict)  #: directories of nodes from several sources, by name
    #: The files are a private copy of what an archive holds: nothing else uses them, and no change of them matters.
    unpack: str = ""  #: command that unpacks the archive for good; "" if there is none
    notes: list[str] = field(default_factory=list)  #: facts about the choice of files
    #: What an archive should hold and cannot be read; such a source is never clean.
    flaws: list[str] = field(default_factory=list)
    release: Callable[[], None] = lambda: None  #: removes private copies

    @property
    def holds_streams(self) -> bool:
        """It is a JetStream directory, not a store of channels."""
        return bool(self.streams or self.raft_groups)

    @property
    def shown(self) -> str:
        """Its path or URL in the output."""
        return self.sql.path if self.sql else str(self.path)

    @property
    def archived(self) -> bool:
        return bool(self.unpack)

    @property
    def only_here(self) -> bool:
        """Tasks of Spark cannot read it."""
        return self.archived or Capability.TASKS not in self.found.kind.capabilities

    @property
    def node(self) -> NodeFiles | None:
        """The clustered node, if it is one."""
        return self.nodes[0] if len(self.nodes) == 1 else None

    @property
    def place(self) -> Path:
        """The directory of the files: that of the store, else of the node; of an archive that of its copy."""
        if self.holds_streams or self.sql:
            return self.copied or self.path
        return self.datastore.path if self.datastore else self.nodes[0].path

    def node_place(self, node: str) -> Path:
        """Returns the directory of a node of a JetStream cluster."""
        return self.node_places.get(node) or self.place.absolute() / node

    def store(self, why: str = "") -> Datastore:
        """Returns the file store, also that of a node; `why` tells the user the reason for needing one.

        Of a SQL store it is a private copy of its intact content.
        """
        if self.sql and self.datastore is None:
            assert self.convert
            self.datastore = self.convert()
        if self.holds_streams:
            word = shell_word(str(self.path))
            raise NotAStoreError(
                f"{self.found.problem().message}; it has neither channels nor clients",
                f"`stantools subs {word}` shows the consumers of its streams, `stantools messages {word} STREAM` their "
                f"messages; `stantools migrate {word} --to jetstream` restores them into a running server",
            )
        if self.datastore is None:
            node = self.nodes[0]
            if node.data is None:
                raise StoreUnreadableError(
                    f"{self.path}: the file store of the node is missing, but needed: {why}",
                    "stantools info, subs and verify show its Raft log",
                )
            self.datastore = open_store(node.data, self.read_options)
        return self.datastore

    def chosen_streams(self, patterns: Sequence[str] = ()) -> list[StoredStream]:
        """Returns the streams whose names match a pattern; no patterns match all.

        Raises:
            UsageError: Patterns were given, and none matches.
        """
        chosen = [each for each in self.streams if each.matches(patterns)]
        if patterns and not chosen:
            raise UsageError(f"no stream matches {', '.join(map(escape, patterns))}", "see: stantools info STORE")
        return chosen

    def logged_streams(self) -> list[str]:
        """Returns ACCOUNT/NAME of the streams of which only a Raft log is here, and no directory."""
        stored = {(each.account, each.name) for each in self.streams}
        logged = {
            each.asset[:2]: None
            for each in self.raft_groups
            if all(each.asset[:2]) and not each.asset[2] and each.on_disk
        }
        return ["/".join(each) for each in logged if each not in stored]

    def stream(self, name: str) -> StoredStream:
        """Returns a stream by its name, or by ACCOUNT/NAME where several accounts have one of that name.

        Raises:
            StoreUnreadableError: None or several have that name.
        """
        names = [each.full_name for each in self.streams]
        found = [each for each in self.streams if name in (each.name, each.full_name)]
        if len(found) == 1:
            return found[0]
        what = f"{len(found)} streams are called {escape(name)}" if found else f"no stream {escape(name)}"
        listed = ", ".join(escape(full) for full in sorted(names) if not found or full.endswith(f"/{name}"))
        remedy = f"its streams are: {listed}"
        if not self.streams:
            word = shell_word(str(self.path))
            remedy = f"only Raft logs are here: `stantools salvage {word} --out NEW` takes messages from them"
        raise StoreUnreadableError(f"{escape(str(self.path))}: {what}", remedy)

    def matches(self, patterns: Sequence[str]) -> bool:
        """Returns whether a channel or stream matches a pattern; those of a node are not known without reading it."""
        if not patterns or self.nodes:
            return True
        if self.holds_streams:
            return any(each.matches(patterns) for each in self.streams)
        return bool((self.sql or self.store()).matching(patterns))

    def check_matches(self, patterns: Sequence[str]) -> None:
        """Raises UsageError if no channel or stream matches a pattern."""
        if not self.matches(patterns):
            (self.chosen_streams if self.holds_streams else self.store().chosen)(patterns)

    def data_size(self, channels: Sequence[str] = ()) -> int:
        """Returns the bytes of the slices or blocks of some channels or streams, to measure progress; 0 if unknown."""
        if self.streams:
            return sum(block.size for each in self.chosen_streams(channels) for block in each.blocks)
        return self.datastore.data_size(self.datastore.matching(channels)) if self.datastore else 0

    def parts(self) -> tuple[NodeFiles, ...]:
        """Returns the source as nodes of a cluster: a store by itself is a node without a Raft log."""
        return self.nodes or (NodeFiles(self.path, None, self.store().path),)

    def places(self) -> list[Path]:
        """Returns the directories in which a server may be at work."""
        if self.holds_streams:
            return [self.place]
        return [path for node in self.parts() for path in (node.raft, node.data) if path]

    def choose_rows(self, *uses: Capability) -> None:
        """Chooses the messages of a SQL store that its uses get, and names the others; uses of its rows get all."""
        if self.sql and not {Capability.OVERVIEW, Capability.SURVEY, Capability.FORECAST} & set(uses):
            self.sql.tolerant = Capability.SALVAGE in uses
            self.flaws += self.sql.left_out()

    def require(self, *uses: Capability) -> None:
        """Raises an error that names what this kind cannot be used for, and the command that works."""
        if self.archived and Capability.CHANGE in uses:
            raise RefusedError(
                f"{self.path}: is an archive, which is never changed",
                f"unpack it, and change the copy: `{self.unpack}`",
            )
        for each in uses:
            if each not in self.found.kind.capabilities:
                if each is Capability.HISTORY and self.nodes:
                    raise UsageError(
                        "a clustered node keeps no history of single records",
                        "stantools records FILE prints the entries of its raft.log",
                    )
                raise self.found.refusal(each)
