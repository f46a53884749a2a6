"""All streams of a server, and the storage that they share (jetstream-server.md sections 3 and 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.streams.api_errors import RequestError, adjusted, invalid_config, sealed, store_failed, stream_not_found
from broker.streams.configuration import StreamConfig
from broker.streams.header_state import HeaderState, read_header_state
from broker.streams.quota import QuotaLimits, StorageQuota
from broker.streams.stream import Stream
from broker.streams.stream_limits import enforce_all, expire
from stantools.nats.interest import finished
from stantools.nats.subjects import overlap
from stantools.nats.subjecttree import PatternTree, grow, tree_of

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping

    from broker.ports import Clock
    from broker.stores.streams.interface import StreamStore
    from broker.streams.ports import StreamStorage

_SHORTAGES: Final[Mapping[str, RequestError]] = {
    "file": RequestError(500, 10047, "insufficient storage resources available"),
    "memory": RequestError(500, 10028, "insufficient memory resources available"),
}

#: streams examined while looking for cycles of copies; a stream may count more than once
_MAX_ORIGINS: Final = 10_000


class Account:
    """The streams of a server, by name. Their subjects do not overlap."""

    def __init__(self, place: StreamStorage, clock: Clock, limits: QuotaLimits) -> None:
        self._place, self._clock = place, clock
        self.quota = StorageQuota(limits)  #: storage used by all streams together, and its limits
        self.streams: dict[str, Stream] = {}
        self._subjects: PatternTree[str] = PatternTree()
        self._version = 0  #: changes whenever the subjects change

    def load(self) -> None:
        """Opens the stored streams, and logs each that cannot be opened. Limits are not enforced yet."""
        for values, created in self._place.streams():
            try:
                config = StreamConfig.read(values)
                config.check(stored=True)
                finished(config.check_overlaps())
            except RequestError as error:
                NATS.error("  Stream %r is left alone: %s", values.get("name"), error.text)
                continue
            try:
                store = self._place.open(config.name)
                header_state = read_header_state(store, config, self._clock.wall())
                stream = self._make(config, created, store, header_state)
                self._add(stream, finished(_subject_tree(config)))
            except StorageError as error:
                NATS.error("  Stream %r is left alone: %s", config.name, error.message)

    def find(self, name: str) -> Stream:
        """Returns a stream by name; raises `RequestError` if it does not exist or has failed."""
        if "/" in name or "\\" in name:
            raise RequestError(400, 10128, "Stream name can not contain path separators")
        stream = self.streams.get(name)
        if stream is None:
            raise stream_not_found()
        if stream.failure:
            raise RequestError(500, 10096, f"stream not valid: {stream.failure}")
        return stream

    def direct(self, name: str) -> Stream | None:
        """Returns the stream that answers direct gets for a name: the stream itself or a mirror of it; else None."""
        stream = self.streams.get(name)
        if stream is not None and stream.config.allow_direct and not stream.failure:
            return stream
        mirrors = (each for each in self.streams.values() if each.config.mirror_direct and not each.failure)
        return next((each for each in mirrors if each.config.mirror and each.config.mirror["name"] == name), None)

    def create(self, config: StreamConfig, *, pedantic: bool = False) -> Generator[None, None, tuple[Stream, bool]]:
        """Makes a stream, in steps; one that exists with the same configuration is returned instead.

        A `pedantic` request fails if its configuration would have to be adjusted. Returns the stream, and whether it
        is new.
        """
        config.check()
        subjects = yield from config.check_overlaps()
        if config.sealed:
            raise invalid_config("stream configuration for create can not be sealed")
        if config.num_replicas > 1:
            raise RequestError(500, 10074, "replicas > 1 not supported in non-clustered mode")
        known = self.streams.get(config.name)
        if known is None or known.config.mirror != config.mirror:
            sent, config = config, self._with_mirror_direct(config)
            if pedantic and config.mirror_direct and not sent.mirror_direct:
                raise adjusted("origin stream has direct get set, mirror has it disabled")
        else:
            config = replace(config, mirror_direct=known.config.mirror_direct)
        if known is not None:
            # The stored configuration does not have the first sequence.
            if known.config != replace(config, first_seq=known.config.first_seq):
                raise RequestError(400, 10058, "stream name already in use with a different configuration")
            return known, False
        names = yield from _subject_tree(config)
        yield from self._check_others(config, subjects)
        self._check_reservation(config, 0)
        created = self._clock.wall()
        try:
            store = self._place.create(config.name, config.storage, max(config.first_seq, 1))
            store.configure(config.as_json(), created)
        except StorageError as error:
            raise store_failed(error.message) from error
        return self._add(Stream(self.quota, config, created, store), names), True

    def update(self, config: StreamConfig) -> Generator[None, None, Stream]:
        """Changes the configuration of a stream and enforces its new limits, in steps."""
        config.check()
        subjects = yield from config.check_overlaps()
        stream = self._find_owned(config.name)
        old = stream.config
        config = replace(old.changed_to(config), mirror_direct=old.mirror_direct and bool(config.mirror))
        kept = {*old.subjects} & {*config.subjects}
        names = yield from _subject_tree(config, kept)
        yield from self._check_others(config, subjects)
        self._check_reservation(config, max(old.max_bytes, 0))
        try:
            stream.store.configure(config.as_json(), stream.created)
        except StorageError as error:
            raise store_failed(error.message) from error
        self._remove(stream, kept)
        stream.configure(config)
        self._add(stream, names)
        now = self._clock.wall()
        while expire(stream, now):
            yield
            stream.check_not_deleted()
        yield from enforce_all(stream)
        stream.check_not_deleted()
        stream.store.flush()
        return stream

    def delete(self, name: str) -> Stream:
        """Deletes a stream with its messages, and returns it. Its consumers are left to the caller."""
        stream = self._find_owned(name)
        self.drop(stream)
        try:
            self._place.delete(name, stream.store)
        except StorageError as error:
            raise store_failed(error.message) from error
        return stream

    def _find_owned(self, name: str) -> Stream:
        """Returns a stream that may be changed, even a failed one; raises `RequestError` if it is borrowed."""
        stream = self.streams.get(name)
        if stream is None:
            return self.find(name)
        if stream.borrowed:
            raise sealed()
        return stream

    def lend(self, config: StreamConfig, created: int, store: StreamStore) -> Stream:
        """Adds a stream with a borrowed store; raises `RequestError` if the name or the subjects are taken."""
        if config.name in self.streams:
            raise RequestError(400, 10058, "stream name already in use with a different configuration")
        finished(self._check_subjects(config.name, tree_of(each.encode() for each in config.subjects)))
        return self._add(Stream(self.quota, config, created, store, borrowed=True), finished(_subject_tree(config)))

    def check_free(self, name: str) -> None:
        """Raises `RequestError` if the name of a stream to restore is taken."""
        if name in self.streams:
            raise RequestError(400, 10130, "stream name already in use, cannot restore")

    def check_new(self, config: StreamConfig) -> Generator[None, None, None]:
        """Raises `RequestError` if a stream cannot be restored because of the others; works in steps."""
        self.check_free(config.name)
        if config.num_replicas > 1:
            raise RequestError(500, 10074, "replicas > 1 not supported in non-clustered mode")
        yield from self._check_others(config, tree_of(each.encode() for each in config.subjects))
        self._check_reservation(config, 0)

    def restore(
        self, config: StreamConfig, created: int, store: StreamStore, header_state: HeaderState
    ) -> Generator[None, None, Stream]:
        """Adds a stream with an opened store, in steps.

        Messages over its limits are deleted first, unless it has sources. The configuration may differ from that in
        the store. `header_state` is the state from the headers of its messages. Raises `RequestError` if another stream
        with that name or overlapping subjects was made meanwhile.
        """
        store.configure(config.as_json(), created)
        stream = self._make(config, created, store, header_state)
        if not config.sources:
            # With sources, a message over the limits may be the one that shows a source's position: `adopt` reads that
            # first.
            yield from self.trim(stream)
        names = yield from _subject_tree(config)
        try:
            yield from self.check_new(config)
        except RequestError:
            self._uncount(stream)
            raise
        return self._add(stream, names)

    def _make(self, config: StreamConfig, created: int, store: StreamStore, header_state: HeaderState) -> Stream:
        """Makes a stream without adding it to the others."""
        stream = Stream(self.quota, config, created, store)
        stream.set_header_state(header_state)
        return stream

    def trim(self, stream: Stream) -> Iterator[None]:
        """Deletes the messages of a stream that are over its limits now, in steps."""
        while not stream.deleted and expire(stream, self._clock.wall()):
            yield
        if not stream.deleted:
            yield from enforce_all(stream)
        if not stream.deleted:
            stream.store.flush()

    def drop(self, stream: Stream) -> None:
        """Removes a stream; its files stay."""
        self._remove(stream)
        stream.deleted = True
        self._uncount(stream)

    def _uncount(self, stream: Stream) -> None:
        self.quota.used[stream.config.storage] -= stream.counted_bytes

    def _add(self, stream: Stream, names: PatternTree[str]) -> Stream:
        """Adds a stream, and its name for its new subjects. Returns the stream."""
        self.streams[stream.name] = stream
        self._version += 1
        self._subjects.merge(names)
        return stream

    def _remove(self, stream: Stream, kept: Collection[str] = ()) -> None:
        """Removes a stream. The subjects in `kept` stay, because the caller adds the stream again."""
        del self.streams[stream.name]
        self._version += 1
        for subject in stream.config.subjects:
            if subject not in kept:
                self._subjects.remove(subject.encode(), stream.name)

    def reopen(self, stream: Stream) -> None:
        """Opens a stream again with its flushed messages, after a failed write."""
        if stream.config.storage == "file":
            try:
                stream.store.abandon()
                stream.store = self._place.open(stream.name)
                stream.failure = ""
            except StorageError as error:
                stream.failure = error.message
            else:
                stream.reload_header_state(self._clock.wall())
                stream.count()
                for follower in stream.followers:
                    follower.renew()

    def reserved(self, storage: str) -> int:
        """Returns the sum (bytes) of the configured sizes of all streams with this storage."""
        return sum(
            max(stream.config.max_bytes, 0) for stream in self.streams.values() if stream.config.storage == storage
        )

    def selected(self, subject: str) -> list[Stream]:
        """Returns the streams, sorted by name, with a subject that overlaps `subject`; all if it is empty."""
        if not subject:
            return [stream for _, stream in sorted(self.streams.items())]
        pairs = tree_of((subject.encode(),)).overlaps(self._subjects)
        return [self.streams[name] for name in sorted({pair[1] for pair in pairs if pair is not None})]

    def _with_mirror_direct(self, config: StreamConfig) -> StreamConfig:
        """Lets a mirror answer direct gets if its origin does."""
        origin = self.streams.get(config.mirror["name"]) if config.mirror else None
        return replace(config, mirror_direct=origin.config.allow_direct) if origin is not None else config

    def _check_others(self, config: StreamConfig, subjects: PatternTree[bytes]) -> Generator[None, None, None]:
        """Raises `RequestError` if a stream conflicts with another one."""
        self._check_cycles(config)
        for name in {each["name"] for each in config.origins} & self.streams.keys():
            if 0 < config.max_msg_size < self.streams[name].config.max_msg_size:
                number, what = (10030, "mirror") if config.mirror else (10046, "source")
                text = f"stream {what} must have max message size >= {'source' if config.mirror else 'target'}"
                raise RequestError(400, number, text)
        yield from self._check_subjects(config.name, subjects)

    def _check_cycles(self, config: StreamConfig) -> None:
        """Raises `RequestError` if a stream would copy from itself (jetstream-server.md section 16)."""
        seen, queue = set(), [config]
        for each in queue:
            seen.add(each.name)
            for origin in each.origins:
                name, only = origin["name"], origin.get("filter_subject", "")
                if name in seen:
                    # This refuses more than cycles, as real servers do.
                    own = not only or any(overlap(only, subject) for subject in each.subjects)
                    if each.mirror or own:
                        raise invalid_config("detected cycle")
                elif len(queue) > _MAX_ORIGINS:
                    raise invalid_config("detected cycle")
                elif name in self.streams:
                    queue.append(self.streams[name].config)

    def _check_subjects(self, name: str, subjects: PatternTree[bytes]) -> Generator[None, None, None]:
        version = -1
        # Another stream may have been added between two steps.
        while version != self._version:
            version = self._version
            for pair in subjects.overlaps(self._subjects):
                if pair is None:
                    yield
                elif pair[1] != name:
                    raise RequestError(400, 10065, "subjects overlap with an existing stream")

    def _check_reservation(self, config: StreamConfig, before: int) -> None:
        wanted = self.reserved(config.storage) - before + max(config.max_bytes, 0)
        if config.max_bytes > max(before, 0) and wanted > self.quota.limits.of(config.storage):
            raise _SHORTAGES[config.storage]

    def as_json(self) -> dict[str, Any]:
        """Returns the members of an answer about the account."""
        return {
            "memory": self.quota.used["memory"],
            "storage": self.quota.used["file"],
            "reserved_memory": self.reserved("memory"),
            "reserved_storage": self.reserved("file"),
            "streams": len(self.streams),
        }


def _subject_tree(config: StreamConfig, kept: Collection[str] = ()) -> Generator[None, None, PatternTree[str]]:
    """Makes a tree from a stream's subjects, without those in `kept`, to its name; works in steps."""
    return (yield from grow((each.encode(), config.name) for each in config.subjects if each not in kept))
