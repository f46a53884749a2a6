"""All streams, and what they may take together (jetstream-server.md sections 3 and 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.streams.api_errors import RequestError, adjusted, invalid_config, sealed, store_failed, stream_not_found
from broker.streams.configuration import StreamConfig
from broker.streams.quota import QuotaLimits, StorageQuota
from broker.streams.stream import MessageMemory, Stream, memories
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

#: Streams that are looked at, some of them more than once, until too many copy from each other.
_MOST_ORIGINS: Final = 10_000


class Account:
    """The streams of a server.

    Args:
        place: Where they are kept.
        clock: The time.
        limits: What they may take.
    """

    def __init__(self, place: StreamStorage, clock: Clock, limits: QuotaLimits) -> None:
        self._place, self._clock = place, clock
        self.room = StorageQuota(limits)  #: what they take, and may take
        self.streams: dict[str, Stream] = {}  #: streams by name
        self._subjects: PatternTree[str] = PatternTree()  #: names of streams by their subjects
        self._version = 0  #: another one once that has changed

    def load(self) -> None:
        """Opens the streams that are there, as far as they can be opened. What is over their limits is still there."""
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
                found = memories(store, config, self._clock.wall())
                stream = self._opened(config, created, store, found)
                self._enter(stream, finished(_named(config)))
            except StorageError as error:
                NATS.error("  Stream %r is left alone: %s", config.name, error.message)

    def find(self, name: str) -> Stream:
        """Returns a stream.

        Raises:
            ApiError: There is none of that name, or it has failed.
        """
        if "/" in name or "\\" in name:
            raise RequestError(400, 10128, "Stream name can not contain path separators")
        stream = self.streams.get(name)
        if stream is None:
            raise stream_not_found()
        if stream.failure:
            raise RequestError(500, 10096, f"stream not valid: {stream.failure}")
        return stream

    def direct(self, name: str) -> Stream | None:
        """Returns the stream that answers direct gets of a name: the one that has it, or a mirror; None for none."""
        stream = self.streams.get(name)
        if stream is not None and stream.config.allow_direct and not stream.failure:
            return stream
        mirrors = (each for each in self.streams.values() if each.config.mirror_direct and not each.failure)
        return next((each for each in mirrors if each.config.mirror and each.config.mirror["name"] == name), None)

    def create(self, config: StreamConfig, *, pedantic: bool = False) -> Generator[None, None, tuple[Stream, bool]]:
        """Makes a stream, as work that can be interrupted. One that is there with the same configuration is as good.

        Args:
            config: Its configuration.
            pedantic: It has to be taken as it is.

        Returns:
            The stream, and whether it is new.

        Raises:
            ApiError: It cannot be made.
        """
        config.check()
        subjects = yield from config.check_overlaps()
        if config.sealed:
            raise invalid_config("stream configuration for create can not be sealed")
        if config.num_replicas > 1:
            raise RequestError(500, 10074, "replicas > 1 not supported in non-clustered mode")
        known = self.streams.get(config.name)
        if known is None or known.config.mirror != config.mirror:
            sent, config = config, self._mirrored(config)
            if pedantic and config.mirror_direct and not sent.mirror_direct:
                raise adjusted("origin stream has direct get set, mirror has it disabled")
        else:
            config = replace(config, mirror_direct=known.config.mirror_direct)
        if known is not None:
            # The first sequence is not kept with the configuration.
            if known.config != replace(config, first_seq=known.config.first_seq):
                raise RequestError(400, 10058, "stream name already in use with a different configuration")
            return known, False
        named = yield from _named(config)
        yield from self._check_others(config, subjects)
        self._check_reservation(config, 0)
        created = self._clock.wall()
        try:
            store = self._place.create(config.name, config.storage, max(config.first_seq, 1))
            store.configure(config.as_json(), created)
        except StorageError as error:
            raise store_failed(error.message) from error
        return self._enter(Stream(self.room, config, created, store), named), True

    def update(self, config: StreamConfig) -> Generator[None, None, Stream]:
        """Changes the configuration of a stream, as work that can be interrupted.

        Raises:
            ApiError: It cannot be changed so.
        """
        config.check()
        subjects = yield from config.check_overlaps()
        stream = self._own(config.name)
        old = stream.config
        config = replace(old.changed_to(config), mirror_direct=old.mirror_direct and bool(config.mirror))
        kept = {*old.subjects} & {*config.subjects}
        named = yield from _named(config, kept)
        yield from self._check_others(config, subjects)
        self._check_reservation(config, max(old.max_bytes, 0))
        try:
            stream.store.configure(config.as_json(), stream.created)
        except StorageError as error:
            raise store_failed(error.message) from error
        self._leave(stream, kept)
        stream.configure(config)
        self._enter(stream, named)
        now = self._clock.wall()
        while stream.expire(now):
            yield
            stream.check_there()
        yield from stream.enforce_all()
        stream.check_there()
        stream.store.flush()
        return stream

    def delete(self, name: str) -> Stream:
        """Takes a stream away. Returns what it was.

        Raises:
            ApiError: There is none, or it cannot be removed.
        """
        stream = self._own(name)
        self.drop(stream)
        try:
            self._place.delete(name, stream.store)
        except StorageError as error:
            raise store_failed(error.message) from error
        return stream

    def _own(self, name: str) -> Stream:
        """Returns a stream that may be changed, also a failed one.

        Raises:
            ApiError: There is none of that name, or somebody else has its messages.
        """
        stream = self.streams.get(name)
        if stream is None:
            return self.find(name)
        if stream.borrowed:
            raise sealed()
        return stream

    def lend(self, config: StreamConfig, created: int, store: StreamStore) -> Stream:
        """Makes a stream of messages that somebody else stores.

        Raises:
            ApiError: There is another one of that name, or with such subjects.
        """
        if config.name in self.streams:
            raise RequestError(400, 10058, "stream name already in use with a different configuration")
        finished(self._check_subjects(config.name, tree_of(each.encode() for each in config.subjects)))
        return self._enter(Stream(self.room, config, created, store, borrowed=True), finished(_named(config)))

    def check_free(self, name: str) -> None:
        """Checks whether the name of a stream that is to be restored is free.

        Raises:
            ApiError: There is a stream of that name.
        """
        if name in self.streams:
            raise RequestError(400, 10130, "stream name already in use, cannot restore")

    def check_new(self, config: StreamConfig) -> Generator[None, None, None]:
        """Checks whether a stream may be restored, as work that can be interrupted.

        Raises:
            ApiError: There is one of that name, or with such subjects.
        """
        self.check_free(config.name)
        if config.num_replicas > 1:
            raise RequestError(500, 10074, "replicas > 1 not supported in non-clustered mode")
        yield from self._check_others(config, tree_of(each.encode() for each in config.subjects))
        self._check_reservation(config, 0)

    def restore(
        self, config: StreamConfig, created: int, store: StreamStore, found: MessageMemory
    ) -> Generator[None, None, Stream]:
        """Makes a stream of a store that was opened, as work that can be interrupted.

        Args:
            config: Its configuration, which may be another one than that in its files.
            created: When the stream was made.
            store: The store.
            found: What its messages say about themselves.

        What is over its limits goes before, unless it has sources.

        Raises:
            ApiError: Another one was made meanwhile, with that name or such subjects.
            StorageError: It cannot be written.
        """
        store.configure(config.as_json(), created)
        stream = self._opened(config, created, store, found)
        if not config.sources:
            # What goes may be the last that says how far it is with its sources: that is looked for when it is there.
            yield from self.trim(stream)
        named = yield from _named(config)
        try:
            yield from self.check_new(config)
        except RequestError:
            self._uncount(stream)
            raise
        return self._enter(stream, named)

    def _opened(self, config: StreamConfig, created: int, store: StreamStore, found: MessageMemory) -> Stream:
        """Makes a stream of what is there; nobody else knows it yet."""
        stream = Stream(self.room, config, created, store)
        stream.take_over(found)
        return stream

    def trim(self, stream: Stream) -> Iterator[None]:
        """Takes out what is over the limits of a stream by now, as work that can be interrupted.

        Raises:
            StorageError: It cannot be written.
        """
        while not stream.deleted and stream.expire(self._clock.wall()):
            yield
        if not stream.deleted:
            yield from stream.enforce_all()
        if not stream.deleted:
            stream.store.flush()

    def drop(self, stream: Stream) -> None:
        """Forgets a stream."""
        self._leave(stream)
        stream.deleted = True
        self._uncount(stream)

    def _uncount(self, stream: Stream) -> None:
        self.room.used[stream.config.storage] -= stream.counted

    def _enter(self, stream: Stream, named: PatternTree[str]) -> Stream:
        """Adds a stream, with its name for those of its subjects that have none yet. Returns it."""
        self.streams[stream.name] = stream
        self._version += 1
        self._subjects.merge(named)
        return stream

    def _leave(self, stream: Stream, kept: Collection[str] = ()) -> None:
        """Takes out a stream; some of its subjects stay, as it comes back."""
        del self.streams[stream.name]
        self._version += 1
        for subject in stream.config.subjects:
            if subject not in kept:
                self._subjects.remove(subject.encode(), stream.name)

    def reopen(self, stream: Stream) -> None:
        """Opens a stream anew with what is certain, after something could not be written."""
        if stream.config.storage == "file":
            try:
                stream.store.abandon()
                stream.store = self._place.open(stream.name)
                stream.failure = ""
            except StorageError as error:
                stream.failure = error.message
            else:
                stream.remember(self._clock.wall())
                stream.count()
                for follower in stream.followers:
                    follower.renew()

    def reserved(self, storage: str) -> int:
        """Returns the bytes that streams with such a storage may take as configured."""
        return sum(
            max(stream.config.max_bytes, 0) for stream in self.streams.values() if stream.config.storage == storage
        )

    def selected(self, subject: str) -> list[Stream]:
        """Returns the streams, by name, of which a subject overlaps with one; all for an empty one."""
        if not subject:
            return [stream for _, stream in sorted(self.streams.items())]
        pairs = tree_of((subject.encode(),)).overlaps(self._subjects)
        return [self.streams[name] for name in sorted({pair[1] for pair in pairs if pair is not None})]

    def _mirrored(self, config: StreamConfig) -> StreamConfig:
        """A mirror answers direct gets of its origin if that does."""
        origin = self.streams.get(config.mirror["name"]) if config.mirror else None
        return replace(config, mirror_direct=origin.config.allow_direct) if origin is not None else config

    def _check_others(self, config: StreamConfig, subjects: PatternTree[bytes]) -> Generator[None, None, None]:
        """Checks whether a stream goes with the others."""
        self._check_cycles(config)
        for name in {each["name"] for each in config.origins} & self.streams.keys():
            if 0 < config.max_msg_size < self.streams[name].config.max_msg_size:
                number, what = (10030, "mirror") if config.mirror else (10046, "source")
                text = f"stream {what} must have max message size >= {'source' if config.mirror else 'target'}"
                raise RequestError(400, number, text)
        yield from self._check_subjects(config.name, subjects)

    def _check_cycles(self, config: StreamConfig) -> None:
        """Checks where a stream would get its messages from (jetstream-server.md section 16)."""
        looked, todo = set(), [config]
        for each in todo:
            looked.add(each.name)
            for origin in each.origins:
                name, only = origin["name"], origin.get("filter_subject", "")
                if name in looked:
                    # What is refused is more than cycles, but real servers refuse it as well.
                    own = not only or any(overlap(only, subject) for subject in each.subjects)
                    if each.mirror or own:
                        raise invalid_config("detected cycle")
                elif len(todo) > _MOST_ORIGINS:
                    raise invalid_config("detected cycle")
                elif name in self.streams:
                    todo.append(self.streams[name].config)

    def _check_subjects(self, name: str, subjects: PatternTree[bytes]) -> Generator[None, None, None]:
        version = -1
        # Another stream may have come in between.
        while version != self._version:
            version = self._version
            for pair in subjects.overlaps(self._subjects):
                if pair is None:
                    yield
                elif pair[1] != name:
                    raise RequestError(400, 10065, "subjects overlap with an existing stream")

    def _check_reservation(self, config: StreamConfig, before: int) -> None:
        wanted = self.reserved(config.storage) - before + max(config.max_bytes, 0)
        if config.max_bytes > max(before, 0) and wanted > self.room.limits.of(config.storage):
            raise _SHORTAGES[config.storage]

    def as_json(self) -> dict[str, Any]:
        """Returns what there is to say of all streams together."""
        return {
            "memory": self.room.used["memory"],
            "storage": self.room.used["file"],
            "reserved_memory": self.reserved("memory"),
            "reserved_storage": self.reserved("file"),
            "streams": len(self.streams),
        }


def _named(config: StreamConfig, kept: Collection[str] = ()) -> Generator[None, None, PatternTree[str]]:
    """Makes a tree of a stream's subjects, but for some, with its name, as work that can be interrupted."""
    return (yield from grow((each.encode(), config.name) for each in config.subjects if each not in kept))
