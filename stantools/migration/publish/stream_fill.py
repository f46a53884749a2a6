"""Filling one stream: its current state, its missing messages, its completion."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.publish import settings
from stantools.migration.publish.loader import (
    CERTAIN_FROM,
    Loader,
    PublishOptions,
)
from stantools.migration.publish.resume import (
    AT_ONCE,
    REMEDY,
    NotOursError,
    compare,
    extent,
    find_fillers,
    gaps,
    missing,
)
from stantools.nats.errors import ApiError, NatsError, PermissionDeniedError
from stantools.nats.publishing.publish_run import MAX_WINDOW, MAX_WINDOW_BYTES

if TYPE_CHECKING:
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.messages import Messages

_T = TypeVar("_T")

#: first version that reliably creates a stream with a given first sequence
_FIRST_SEQUENCE_FROM: Final = (2, 11, 0)
#: settings that cannot be removed from a stream
_PERMANENT: Final = ("first_seq", "deny_delete", "deny_purge", "sealed")
#: fillers that a killed run can leave: two batches being deleted, and a window in flight
_LEFT_FILLERS: Final = 2 * AT_ONCE + MAX_WINDOW


class StreamFill:
    """One stream that is filled; arguments as in `publish_stream`."""

    def __init__(
        self,
        js: JetStream,
        name: str,
        config: Mapping[str, Any],
        source: Messages,
        options: PublishOptions,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._js = js
        self._name = name
        self._config = settings.final_config({**config, "name": name})
        self._subjects = list(config.get("subjects") or [name])
        self._loading = settings.loading_config(self._config, source.count)
        self._source = source
        self._options = options
        self._progress = progress or (lambda messages: None)
        self._examined = self._created = self._complete = False
        #: sequence of the stream's first message
        self._first = source.first if source.count else source.last + 1
        #: sender, with counts of its messages
        self.loader = Loader(js, name, source, os.fsencode(self._subjects[0]), options, self._progress)
        self.loader.replicated = int(config.get("num_replicas") or 1) > 1
        self.found = 0  #: messages that were there before
        #: messages of the stream before the source, if the source is only a part of the stream (see `appending`); else
        #: None
        self.preceding: int | None = None
        self._is_whole_source = True
        #: the stream has to be purged after its creation, to set its first sequence
        self.needs_purge = self._first > 1
        self._fills_before_first = self.needs_purge and self.loader.replicated and js.connection.version < CERTAIN_FROM
        self.missing_count = missing(source) + (self._first - 1) * self._fills_before_first  #: number of fillers needed

    @property
    def needs_update(self) -> bool:
        """The stream's configuration has to be changed at the end."""
        return not self._is_whole_source or bool(settings.differences(self._loading, self._config))

    @property
    def unsettled(self) -> bool:
        """The server may still lose work that no later step would check."""
        return self.needs_update and not self._complete and bool(self.loader.messages + self.loader.filled)

    @property
    def reported(self) -> int:
        """The last sequence known to be stored."""
        return self.loader.reported

    def writes_part(self, description: str, preceding: int | None) -> None:
        """Marks the source as a part of the stream (see `appending`), which other code finishes.

        `description` marks the stream until then; `preceding` is None if the stream begins with this part.
        """
        self._loading["description"] = description
        self._is_whole_source = False
        self.preceding = preceding
        if preceding is not None:
            self._fills_before_first = False
            self.missing_count = missing(self._source)

    def begin_by_configuration(self) -> bool:
        """Creates the stream with its first sequence, without a purge, if the server can; returns whether it can.

        2.10 (seen: 2.10.26) loses all messages of such a stream when the server is killed; older versions lack the
        setting.
        """
        if self._js.connection.version >= _FIRST_SEQUENCE_FROM:
            self._loading["first_seq"] = self._first
            self.needs_purge = False
        return not self.needs_purge

    async def fill(self) -> None:
        """Sends the missing messages, and creates the stream if needed. A failed call may be repeated.

        Raises NotOursError if the stream holds messages that are not in the source.
        """
        self.loader.open()
        info = await self._js.stream_info(self._name) or await self._create()
        settings.check_fixed(self._name, info["config"], {**self._config, "subjects": self._subjects})
        if self._fills_before_first and int(info["state"]["last_seq"]) < self._first:
            await self._fill_before_first(info["state"])
            info = await self._info()
        after = await self._position(info)
        if self._complete:
            return
        if after < self._source.last:
            self._check_deletable(info["config"], after)
            await self._lift_limits(info)
            try:
                await self.loader.run(after)
            except ApiError as problem:
                await self._force_recount(problem, self.loader.confirmed)
                raise
        await self.loader.delete_fillers()
        await self._check_complete()

    async def finish(self) -> dict[str, Any]:
        """Configures the stream and returns its state. A failed call may be repeated."""
        info = await self._info()
        if settings.differences(info["config"], self._config):
            await self._update(self._config, info)
            info = await self._info()
        state: dict[str, Any] = info["state"]
        return state

    async def explain(self, problem: StantoolsError) -> None:
        """Adds the state of the stream to an error. A stream that was created in vain is removed."""
        if not self._created and not self._examined:
            return
        reached = self.reported
        try:
            info = await self._js.stream_info(self._name)
            if info is None:
                return
            if self._created and not int(info["state"]["messages"]) and not self.loader.messages:
                await self._js.delete_stream(self._name)
                return
            reached = int(info["state"]["last_seq"])
        except NatsError:
            if self._created and not self.reported:
                _add_context(problem, f"stream {self._name} was created and may still exist", "remove it, or run again")
                return
        what = f"stream {self._name} is filled up to sequence {reached} of {self._source.last}"
        _add_context(problem, what, "the same command continues from there")

    async def _force_recount(self, problem: ApiError, stored: int) -> None:
        """Makes the server recount a stream whose last sequence it believes to be lower than it is.

        2.10 (seen: 2.10.26) falls back to the sequence of a purge that ends during another writer's messages, and
        refuses all later messages. A purge that removes nothing makes it recount.
        """
        counted = problem.last_counted
        if counted is not None and counted < stored and self._js.connection.version >= CERTAIN_FROM:
            info = await self._info()
            await self._js.purge_stream(self._name, below=max(1, int(info["state"]["first_seq"])))

    async def _info(self) -> dict[str, Any]:
        info = await self._js.stream_info(self._name)
        if info is None:
            raise RefusedError(f"stream {self._name} was removed while it was filled", "migrate it again")
        return info

    async def _create(self) -> dict[str, Any]:
        if self._examined:
            return await self._info()
        try:
            info = await self._with_required_max_bytes(lambda: self._js.create_stream(self._loading))
        except ApiError as problem:
            # Of two writers that create it at once, 2.9 may refuse one because of the subjects that the other has just
            # taken.
            there = await self._js.stream_info(self._name) if problem.err_code == settings.SUBJECTS_OVERLAP else None
            if there is None:
                raise
            return there
        self._created = True
        return info

    async def _lift_limits(self, info: Mapping[str, Any]) -> None:
        """Prepares an existing stream for filling."""

        async def lift() -> None:
            if settings.differences(info["config"], self._loading):
                await self._update(self._loading, info)

        await self._with_required_max_bytes(lift)

    async def _with_required_max_bytes(self, change: Callable[[], Awaitable[_T]]) -> _T:
        """Makes a change, and repeats it with `max_bytes` if the account demands that."""
        try:
            return await change()
        except ApiError as problem:
            if problem.err_code != settings.MAX_BYTES_REQUIRED:
                raise
            self._loading = settings.with_max_bytes(self._loading, self._config)
            return await change()

    async def _update(self, config: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Changes the configuration except the fields that are fixed by now."""
        there = info["config"]
        wanted = {key: value for key, value in config.items() if key != "first_seq"}
        await self._js.update_stream(wanted | {key: there[key] for key in _PERMANENT if there.get(key)})

    def _check_deletable(self, config: Mapping[str, Any], after: int) -> None:
        """Checks that the server can delete the fillers that are still needed."""
        messages = self._source.count - self.found - self.loader.messages
        fillers = self._source.last - after - messages
        if config.get("deny_delete") and fillers:
            raise RefusedError(
                f"stream {self._name} forbids deleting messages (deny_delete), which is needed for {fillers} gaps "
                f"after sequence {after}",
                "remove the stream and migrate again",
            )

    async def _position(self, info: Mapping[str, Any]) -> int:
        """Returns the last sequence that is stored and right, and updates the counts to it."""
        state = info["state"]
        messages, first, last = (int(state[name]) for name in ("messages", "first_seq", "last_seq"))
        until = min(last, self._source.last)
        # The stream gets its limits only when complete; messages that they remove afterwards are not missing.
        limited = self._is_whole_source and self.needs_update and not settings.differences(info["config"], self._config)
        if until == self._source.last and limited:
            if not self._examined:
                self.found = self._source.count
                self._progress(self.found)
            self._complete = self._examined = True
            self.loader.reported = until
            return until
        if not messages and self.preceding is None:
            return await self._position_of_empty(last)
        if self.preceding is None and (first < self._first or (first > self._first and self._source.count)):
            raise NotOursError(f"stream {self._name} begins at sequence {first}, expected {self._first}", REMEDY)
        if not self._examined:
            await self._examine(first, until)
        elif until != self.reported:
            await self._reexamine(first, until)
        self._examined = True
        self.loader.reported = until
        return until

    async def _fill_before_first(self, state: Mapping[str, Any]) -> None:
        """Fills the sequences before the first message, then purges the fillers."""
        first, last = int(state["first_seq"]), int(state["last_seq"])
        if first == self._first:
            return
        if last:
            there = range(max(1, last - MAX_WINDOW + 1), last + 1)
            if first != 1 or int(state["messages"]) != last or len(await self._fillers(there)) != len(there):
                raise NotOursError(f"stream {self._name} already holds messages at sequences {first} to {last}", REMEDY)
        self._examined = True
        if last < self._first - 1:
            await self.loader.lead(last, self._first)
        await self._js.purge_stream(self._name, below=self._first)

    async def _fillers(self, sequences: Iterable[int]) -> list[int]:
        return await find_fillers(self._js, self._name, sequences)

    async def _position_of_empty(self, last: int) -> int:
        want = self._first - 1
        if last == 0 and want:
            await self._js.purge_stream(self._name, below=self._first)
            last = want
        if last != want and last < self._source.last:
            raise NotOursError(
                f"stream {self._name} has been emptied: its last sequence is {last}, expected {want}", REMEDY
            )
        self._examined = True
        self.loader.reported = min(last, self._source.last)
        return self.loader.reported

    async def _examine(self, first: int, until: int) -> None:
        """Compares the messages of an earlier run."""
        before = extent(self._source, until, _LEFT_FILLERS, MAX_WINDOW, MAX_WINDOW_BYTES)
        reach = max(first - 1, before.reach)
        compared = await compare(self._js, self._name, self._source, reach, until, self._options.generation)
        rest = (each for each in _sequences(before.gaps) if each <= reach)
        self.loader.fillers = await self._fillers(rest) + compared.fillers
        self.found = before.messages
        self._progress(self.found)

    async def _reexamine(self, first: int, until: int) -> None:
        """Compares the stored messages after a failure."""
        loader, source = self.loader, self._source
        before = None
        if until < self.reported:
            # A killed server may have lost messages that it had acknowledged.
            before = extent(source, until, 0, MAX_WINDOW, MAX_WINDOW_BYTES)
        reach = max(first - 1, before.reach if before else self.reported)
        compared = await compare(self._js, self._name, source, reach, until, self._options.generation)
        more = before.messages - extent(source, self.reported).messages if before else compared.messages
        loader.messages += more
        self._progress(more)
        known = {each for each in loader.fillers if each <= until}
        loader.fillers = sorted(known.union(compared.fillers))
        loader.filled += len(loader.fillers) - len(known)

    async def _check_complete(self) -> None:
        """Checks that the stream holds as many messages as the source, and removes fillers that have reappeared."""
        state = (await self._info())["state"]
        beyond = max(int(state["last_seq"]) - self._source.last, 0)
        wanted, begins = self._source.count + (self.preceding or 0), self.preceding is None and self._source.count
        if int(state["messages"]) > wanted + beyond:
            # fillers that a killed server had deleted may have reappeared
            empty = gaps(self._source.read(), self._first - 1, self._source.last) if self._source.count else ()
            self.loader.fillers = await self._fillers(_sequences(empty))
            await self.loader.delete_fillers()
            state = (await self._info())["state"]
            beyond = max(int(state["last_seq"]) - self._source.last, 0)
        have, first = int(state["messages"]), int(state["first_seq"])
        # Other publishers may also delete their messages.
        wrong = have != wanted if not beyond else have < wanted
        if wrong or (begins and first != self._first) or int(state["last_seq"]) < self._source.last:
            raise NotOursError(
                f"stream {self._name} holds {have} messages from sequence {first} to {state['last_seq']}, expected "
                f"{wanted} from {self._first if begins else first} to {self._source.last}",
                REMEDY,
            )


def _sequences(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def _add_context(problem: StantoolsError, state: str, remedy: str) -> None:
    problem.message = f"{problem.message}; {state}"
    problem.remedy = f"{problem.remedy}; {remedy}" if problem.remedy else remedy
    problem.args = (problem.message,)


async def probe(js: JetStream, name: str, stream_fill: StreamFill, *, consumers: bool) -> None:
    """Sends the later requests for a stream that does not exist, to learn of missing permissions early.

    `consumers`: consumers will be made as well. Raises PermissionDeniedError if one of the requests is not
    permitted.
    """
    requests: list[tuple[str, Mapping[str, Any]]] = []
    if stream_fill.missing_count:
        requests.append((f"STREAM.MSG.DELETE.{name}", {"seq": 0}))
    if stream_fill.needs_purge:
        requests.append((f"STREAM.PURGE.{name}", {"seq": 1}))
    if stream_fill.needs_update:
        # Another writer may create the stream right now: a request with another name in it is refused in any case.
        requests.append((f"STREAM.UPDATE.{name}", {"name": f"{name}-probe"}))
    if consumers:
        requests.append((f"CONSUMER.INFO.{name}.probe", {}))
    for operation, body in requests:
        try:
            await js.api(operation, body)
        except ApiError:
            continue  # permitted, as the error is only that the stream does not exist
        except PermissionDeniedError:
            if not operation.startswith("STREAM.PURGE.") or not stream_fill.begin_by_configuration():
                raise
