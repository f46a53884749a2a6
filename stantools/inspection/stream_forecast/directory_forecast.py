"""The start of a nats-server on a JetStream directory: which streams load, in which state, and what it changes.

Facts: jetstream-store.md sections 13, 15, 16.3, 20 and 23.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from stantools.errors import NotPermittedError, StoreUnreadableError
from stantools.inspection.stream_forecast.changes import DirectoryChanges, FileChange
from stantools.inspection.stream_forecast.cluster_start import ORPHAN_SECONDS, ClusterStart, StreamFate
from stantools.inspection.stream_forecast.expiry import apply_limits, expire_after_start
from stantools.inspection.stream_forecast.losses import StreamLoss, stream_loss
from stantools.inspection.stream_forecast.reading import BlockReader, ServerHangs, read_stream
from stantools.inspection.stream_forecast.recovery import RecoveredStream, ServerPanic, StoreNotOpened, StoreState
from stantools.inspection.stream_forecast.started_consumers import ConsumerOutcome, recreate_consumers, start_consumers
from stantools.inspection.stream_forecast.versions import ServerRules
from stantools.progress import Progress
from stantools.store.ranges import Ranges
from stantools.streamfiles import highwayhash
from stantools.streamfiles.directory import StoredStream
from stantools.streamfiles.layout import ArchiveError
from stantools.streamfiles.meta import meta_sum
from stantools.streamfiles.survey import StreamSurvey

#: bytes of a nonce and a tag around sealed data, and of a file with a sealed key
_SEAL_SIZE: Final = 40
_KEY_FILE_SIZE: Final = 72
_LEVEL: Final = "_nats.req.level"


@dataclass
class StartedStream:
    """A stream after the start."""

    account: str
    name: str
    loaded: bool = False
    error: str = ""  #: the line that tells why it is not loaded, or the error that it answers with
    state: StoreState = field(default_factory=StoreState)
    num_deleted: int = 0
    readable: Ranges = field(default_factory=Ranges)
    delivered: Ranges | None = None  #: None for streams that a delivery changes
    stops: bool = False  #: delivery ends at damage
    consumers: dict[str, ConsumerOutcome] = field(default_factory=dict)
    directory_deleted: bool = False
    fate: StreamFate = StreamFate.KEPT
    loss: StreamLoss = field(default_factory=StreamLoss)

    def as_json(self) -> dict[str, Any]:
        return {
            "loaded": self.loaded,
            "error": self.error or None,
            "messages": self.state.messages,
            "bytes": self.state.bytes,
            "first_seq": self.state.first,
            "last_seq": self.state.last,
            "num_deleted": self.num_deleted,
            "readable": self.readable.as_json(),
            "served_wrong": self.loss.wrong.as_json(),
            "delivered_from_start": None if self.delivered is None else self.delivered.as_json(),
            "destroyed": self.loss.destroyed.as_json(),
            "not_served": self.loss.unserved.as_json(),
            "reused": self.loss.reused.as_json(),
            "consumers": {name: each.as_json() for name, each in self.consumers.items()},
        }


@dataclass
class DirectoryForecast:
    """The outcome of a start."""

    version: str
    starts: bool = True
    hangs: bool = False
    exit_code: int | None = None
    log: list[tuple[str, str]] = field(default_factory=list)
    streams: dict[str, StartedStream] = field(default_factory=dict)
    changes: DirectoryChanges = field(default_factory=lambda: DirectoryChanges(Path()))
    later: dict[str, FileChange] = field(default_factory=dict)  #: changes by the first lookups
    orphans: dict[str, str] = field(default_factory=dict)  #: directories of streams that are deleted as orphans

    def as_json(self) -> dict[str, Any]:
        return {
            "server_version": self.version,
            "starts": self.starts,
            "exit_code": self.exit_code,
            "log": [list(each) for each in self.log],
            "streams": {name: each.as_json() for name, each in self.streams.items()},
            "files_changed": {name: each.as_json() for name, each in sorted(self.changes.files.items())},
            "files_changed_by_reading": {name: each.as_json() for name, each in sorted(self.later.items())},
            "directories_removed": sorted(self.changes.removed),
            "orphans": [
                {"stream": name, "directory": path, "after_seconds": ORPHAN_SECONDS}
                for name, path in sorted(self.orphans.items())
            ],
        }


def merged_forecast(version: str, parts: Sequence[DirectoryForecast]) -> DirectoryForecast:
    """Returns the forecasts of single streams as one of their directory, without its log and changes."""
    whole = DirectoryForecast(version)
    for each in parts:
        whole.streams |= each.streams
        if not each.starts and whole.starts:
            whole.starts, whole.hangs, whole.exit_code = False, each.hangs, each.exit_code
    return whole


def forecast_directory(
    streams: Sequence[StoredStream],
    root: Path,
    rules: ServerRules,
    *,
    now: int | None = None,
    accounts: Collection[str] | None = None,
    cluster: ClusterStart | None = None,
    survey: Callable[[StoredStream], StreamSurvey] | None = None,
    progress: Progress = lambda _size: None,
) -> DirectoryForecast:
    """Predicts a start of a server of one version on the streams of a directory.

    `now` is the time of the start in nanoseconds since 1970; `accounts` are those of its configuration, all by default.
    `cluster` is that of the streams' node. `survey` reads a stream, once for several forecasts.
    """
    forecast = DirectoryForecast(rules.version, changes=DirectoryChanges(root))
    # Unfinished restores lie in the store directory.
    for folder in sorted({stream.path.absolute().parent.parent.parent for stream in streams}):
        for name in (".snap-staging", "snap-staging"):
            if (folder / name).is_dir():
                forecast.changes.remove_directory(folder / name)
    for stream in streams:
        if not _is_seen(stream, root) or (accounts is not None and stream.account not in accounts):
            outcome = StartedStream(stream.account, stream.name, error="no server with this directory looks for it")
            if survey:
                outcome.loss = StreamLoss(found := survey(stream).intact, unserved=found)
            forecast.streams[stream.full_name] = outcome
            continue
        start = _StreamStart(stream, rules, forecast, time.time_ns() if now is None else now, progress, cluster)
        try:
            outcome = start.run()
        except ServerPanic as panic:
            forecast.log.append(("PANIC", f"panic: {panic}"))
            forecast.starts, forecast.exit_code = False, 2
            outcome = start.outcome
        except ServerHangs:
            forecast.starts, forecast.hangs = False, True
            outcome = start.outcome
        name = f"{stream.account}/{outcome.name}"
        forecast.streams[name] = outcome
        fate = cluster.fate(stream.node, (stream.account, stream.name)) if cluster else StreamFate.KEPT
        if fate is not StreamFate.KEPT:
            outcome.directory_deleted, outcome.fate = True, fate
            if fate is StreamFate.ORPHAN:
                forecast.orphans[name] = forecast.changes.name(stream.path)
                shown = f"{stream.account} > {stream.name}"
                forecast.log.append(("WRN", f"Detected orphaned stream '{shown}', will cleanup"))
            forecast.changes.remove_directory(stream.path)
        if survey and fate is not StreamFate.REMOVED:
            outcome.loss = stream_loss(
                survey(stream),
                start.store,
                outcome.readable,
                outcome.consumers,
                deleted=outcome.directory_deleted,
                loaded=outcome.loaded and not outcome.error,
            )
        if not forecast.starts:
            break
    return forecast


def _is_seen(stream: StoredStream, root: Path) -> bool:
    """Returns whether a stream lies where a server looks for it, below a root that the user names."""
    if not stream.path.absolute().is_relative_to(root.absolute()):
        return True  # the user names its blocks
    parts = stream.path.absolute().relative_to(root.absolute()).parts
    return "jetstream" not in parts[1:-3] if len(parts) > 3 else True


class _StreamStart:
    def __init__(
        self,
        stream: StoredStream,
        rules: ServerRules,
        forecast: DirectoryForecast,
        now: int,
        progress: Progress,
        cluster: ClusterStart | None,
    ) -> None:
        self.cluster = cluster
        self.stream, self.rules, self.forecast, self.now, self.progress = stream, rules, forecast, now, progress
        self.outcome = StartedStream(stream.account, stream.name)
        self.store: RecoveredStream | None = None

    def _warn(self, text: str) -> None:
        self.forecast.log.append(("WRN", text))

    def _refuse(self, outcome: StartedStream, text: str) -> StartedStream:
        self._warn(text)
        outcome.error = text.strip()
        return outcome

    def run(self) -> StartedStream:
        stream, outcome = self.stream, self.outcome
        if stream.path.name.startswith("."):
            self.forecast.changes.remove_directory(stream.path)
            outcome.directory_deleted = True
            return outcome
        config = self._config(outcome)
        if config is None and self.cluster and (known := self.cluster.assigned((stream.account, stream.name))):
            # the cluster makes the stream again, over the blocks that are there
            config, outcome.error = known.config, ""
            self.forecast.changes.write(stream.path / "meta.sum", 16)
        if config is None:
            return outcome
        shown = f"{stream.account} > {stream.name}"
        self.forecast.log.append(("INF", f"  Starting restore for stream '{shown}'"))
        store = RecoveredStream(stream, self.rules, self.forecast.changes, self.now, config, self._warn, self.progress)
        self.store = store
        inner = config.get("name", stream.name)
        if inner != stream.name:
            return self._open_renamed(outcome, store, str(inner))
        try:
            store.open()
            apply_limits(store)
            store.apply_first_sequence()
        except StoreNotOpened as problem:
            if problem.deletes:
                self.forecast.changes.remove_directory(stream.path)
                outcome.directory_deleted = True
            return self._refuse(outcome, f'  Error recreating stream "{stream.name}": {problem.text} (10077)')
        self.forecast.log.append(("INF", f"  Restored {store.state.messages:,} messages for stream '{shown}' in <t>"))
        folder = self.stream.path / "batches"
        if self.rules.batches and folder.is_dir() and (config.get("num_replicas") or 1) == 1:
            self.forecast.changes.remove_directory(folder)
        if stream.server_keys is not None and not stream.encrypted:
            self._encrypt(store)
        store.opened = replace(store.state)
        expire_after_start(store)
        reader = BlockReader(store)
        if count := len(store.consumer_names()):
            self.forecast.log.append(("INF", f"  Recovering {count} consumers for stream - '{shown}'"))
        if self.rules.reads_last and store.trusted and store.blocks:
            reader.touch(store.blocks[-1])
        outcome.consumers, error = start_consumers(store, reader)
        outcome.loaded = True
        if error:
            outcome.error = error
            return outcome
        state = store.state
        outcome.state = StoreState(state.messages, state.bytes, state.first, state.last, state.last_time)
        outcome.num_deleted = store.deleted_count()
        at_start = dict(self.forecast.changes.files)
        try:
            reading = read_stream(store, reader)
        except ServerHangs:
            outcome.error = "no answer: the server fills its memory with a table of missing sequences"
            return outcome
        except ServerPanic as panic:
            outcome.error = f"the server ends at the lookup of a message: panic: {panic}"
            return outcome
        finally:
            self.forecast.later.update(
                (name, change) for name, change in self.forecast.changes.files.items() if at_start.get(name) != change
            )
            self.forecast.changes.files = at_start
        outcome.readable, outcome.stops = reading.readable | store.added, reading.stops
        if config.get("retention", "limits") == "limits":
            outcome.delivered = reading.delivered if reading.stops else reading.delivered | store.added
        return outcome

    def _config(self, outcome: StartedStream) -> Mapping[str, Any] | None:
        """Returns the configuration; None, and a line, if the server does not load the stream."""
        stream = self.stream
        meta, checksum = stream.path / "meta.inf", stream.path / "meta.sum"
        try:
            data, stored = stream.read("meta.inf"), stream.read("meta.sum")
        except NotPermittedError:
            raise
        except StoreUnreadableError as problem:
            self._refuse(outcome, f'  Error reading metafile "{meta}": {problem.message}')
            return None
        if data is None:
            self._refuse(outcome, f'  Missing stream metafile for "{meta}"')
            return None
        if stored is None:
            self._refuse(outcome, f'  Missing stream checksum file "{checksum}"')
            return None
        proper = meta_sum(data, highwayhash.stream_key(stream.path.name))
        if stored != proper:
            text = stored.decode("utf-8", "replace")
            self._refuse(outcome, f'  Stream metafile "{meta}": checksums do not match "{text}" vs "{proper.decode()}"')
            return None
        if stream.encrypted:
            if stream.server_keys is None:
                self._refuse(outcome, "  Error decrypting our stream metafile: encryption not enabled")
                return None
            try:
                if stream.key is None:
                    raise ArchiveError("")
                data = stream.key.unseal(data)
            except ArchiveError:
                self._refuse(outcome, "  Error decrypting our stream metafile: unable to recover keys")
                return None
        try:
            config = json.loads(data)
            if not isinstance(config, dict):
                raise ValueError("json: cannot unmarshal into an object")
        except (ValueError, RecursionError) as problem:
            self._refuse(outcome, f'  Error unmarshalling stream metafile "{meta}": {problem}')
            return None
        return config if self._supported(outcome, config) else None

    def _open_renamed(self, outcome: StartedStream, store: RecoveredStream, name: str) -> StartedStream:
        """A stream of another name than its directory is opened empty; its blocks stay where they are, unread."""
        target, changes = self.stream.path.with_name(name), self.forecast.changes
        if target.exists():
            return self._refuse(outcome, f'  Error recreating stream "{name}": stream name already in use (10058)')
        changes.write(target / "meta.inf", (self.stream.path / "meta.inf").stat().st_size)
        changes.write(target / "meta.sum", 16)
        changes.write(target / "msgs" / "1.blk", 0)
        outcome.name, outcome.loaded, outcome.num_deleted = name, True, 1
        outcome.consumers = recreate_consumers(store, target)
        outcome.delivered = Ranges()
        self.forecast.log.append(("INF", f"  Restored 0 messages for stream '{self.stream.account} > {name}' in <t>"))
        return outcome

    def _encrypt(self, store: RecoveredStream) -> None:
        """A server with a key rewrites a stream in the clear: every file of it is encrypted."""
        changes, stream = self.forecast.changes, self.stream
        folders = [stream.path, *(stream.path / "obs" / name for name in store.consumer_names())]
        self.forecast.log.append(("INF", f"  Encrypting stream '{stream.account} > {stream.name}'"))
        for folder in folders:
            changes.write(folder / "meta.inf", (folder / "meta.inf").stat().st_size + _SEAL_SIZE)
            changes.write(folder / "meta.sum", 16)
            changes.write(folder / "meta.key", _KEY_FILE_SIZE)
            if (folder / "o.dat").is_file():
                changes.write(folder / "o.dat", (folder / "o.dat").stat().st_size + _SEAL_SIZE)
        for block in store.blocks:
            changes.write(store.path(block), block.size)
            changes.write(store.path(block).with_suffix(".key"), _KEY_FILE_SIZE)
        changes.remove(store.folder / "index.db")

    def _supported(self, outcome: StartedStream, config: Mapping[str, Any]) -> bool:
        shown = f"{self.stream.account} > {self.stream.name}"
        if unknown := self.rules.unknown_member(config):
            outcome.loaded = True
            self._refuse(
                outcome,
                f"  Detected unsupported stream '{shown}': unsupported - config error: unknown field \"{unknown}\"",
            )
            return False
        age, window = config.get("max_age") or 0, config.get("duplicate_window") or 0
        if age and window > age:
            text = "duplicates window can not be larger then max age (10052)"
            self._refuse(outcome, f'  Error recreating stream "{self.stream.name}": {text}')
            return False
        if (config.get("num_replicas") or 1) > 1 and self.cluster is None:
            text = "replicas > 1 not supported in non-clustered mode (10074)"
            self._refuse(outcome, f'  Error recreating stream "{self.stream.name}": {text}')
            return False
        level = (config.get("metadata") or {}).get(_LEVEL)
        limit = self.rules.api_level
        if limit is not None and level is not None and str(level).isdecimal() and int(level) > limit:
            outcome.loaded = True
            self._refuse(
                outcome,
                f"  Detected unsupported stream '{shown}': unsupported - required API level: {level}, "
                f"current API level: {limit}",
            )
            return False
        return True
