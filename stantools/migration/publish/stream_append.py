"""Appends a part of a channel to a stream; repeated and concurrent calls are safe.

`publish_stream` fills a stream completely, in one process. Here the messages are a part: the first ones, or later
ones. Several processes may write the same part, in turn or at once: the server decides which message is stored where
(see `headers.guarded`), and a late writer finds the work done.

A stream in progress must not look complete. From before the first message until `finish_part` it has no limits, and
its description names the sequences being written:

    stantools: not complete, sequences 101 to 200 are being written behind 100 (100 messages)

No other record exists. The next writer learns from it the earlier content, and that only a writer with these
sequences may continue: later sequences would leave a permanent gap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.publish import settings
from stantools.migration.publish.loader import PublishOptions
from stantools.migration.publish.resume import NotOursError, check_fillers, compare, extent, missing
from stantools.migration.publish.stream_fill import StreamFill, probe
from stantools.migration.tasks import Retry
from stantools.nats.publishing.publish_run import MAX_WINDOW, MAX_WINDOW_BYTES

if TYPE_CHECKING:
    from stantools.format.message_batch import MessageBatch
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.messages import Messages

_DEFAULTS: Final = PublishOptions()
_MARK: Final = re.compile(
    r"stantools: not complete, sequences (\d+) to (\d+) are being written(?: behind (\d+) \((\d+) messages\))?"
)


class UnfinishedError(RefusedError):
    """The stream has an unfinished part, which must be finished first."""


@dataclass(frozen=True)
class AppendMark:
    """The part being written, read from a stream's description."""

    first: int
    last: int
    whole: int = 0  #: last sequence before the part; 0 if the part is the beginning of the stream
    held: int = 0  #: messages before the part

    def __str__(self) -> str:
        behind = f" behind {self.whole} ({self.held} messages)" if self.whole else ""
        return f"stantools: not complete, sequences {self.first} to {self.last} are being written{behind}"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> AppendMark | None:
        """Reads the mark of a stream; None if it is complete."""
        found = _MARK.match(str(config.get("description") or ""))
        return cls(*(int(number or 0) for number in found.groups())) if found else None

    @property
    def floor(self) -> int:
        """The sequence before the part."""
        return min(self.whole, self.first - 1) if self.whole else self.first - 1


@dataclass(frozen=True)
class MessagesPart:
    """The `Messages` of a part. Sequences between its floor and its first message count as missing."""

    messages: Messages
    floor: int  #: the sequence before the part

    @property
    def count(self) -> int:
        return self.messages.count

    @property
    def first(self) -> int:
        """The first sequence, with or without a message."""
        return self.floor + 1

    @property
    def last(self) -> int:
        return self.messages.last

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[MessageBatch]:
        return self.messages.read(after=after, until=until)


@dataclass(frozen=True)
class AppendResult:
    stream: str
    mark: AppendMark | None  #: mark of the stream until it is finished; None if it was complete before
    messages: int  #: messages of the part
    found: int  #: messages that were there before
    fillers: int = 0  #: fillers that were stored and deleted for gaps
    total: int = 0  #: least number of messages in the stream now
    #: attempts after a broken connection or a restarted server
    interruptions: int = 0


async def append_part(
    js: JetStream,
    name: str,
    config: Mapping[str, Any],
    messages: Messages,
    *,
    options: PublishOptions = _DEFAULTS,
) -> AppendResult:
    """Makes sure that a stream holds messages, each at its own sequence, once; `finish_part` completes the work.

    Existing messages must be equal; the last of them are compared. Messages that limits have removed from the
    beginning of the stream are not missing. The stream is created if it does not exist; `config` is its final
    configuration. Raises RefusedError if the stream has other settings or content (`NotOursError`), waits for
    another part (`UnfinishedError`), or needs too many fillers. After a NatsError the same call continues.
    """
    job = _StreamAppend(js, name, settings.final_config({**config, "name": name}), messages, options)
    retry = Retry(js.connection, options.patience)
    mark = await retry.repeat(job.begin)
    if mark is None:
        return AppendResult(name, None, messages.count, messages.count, interruptions=retry.interruptions)
    stream_fill = job.stream_fill(mark)
    if not job.there:
        await probe(js, name, stream_fill, consumers=False)
    try:
        await _fill(stream_fill, retry)
    except StantoolsError as problem:
        await stream_fill.explain(problem)
        raise
    total = messages.count + (stream_fill.preceding or 0)
    fillers = stream_fill.loader.filled
    return AppendResult(name, mark, messages.count, stream_fill.found, fillers, total, retry.interruptions)


async def extend_stream(
    js: JetStream,
    name: str,
    config: Mapping[str, Any],
    messages: Messages,
    floor: int,
    held: int,
    *,
    options: PublishOptions = _DEFAULTS,
    progress: Callable[[int], None] | None = None,
) -> AppendResult:
    """Makes sure that a stream, written only by this caller, holds messages after the ones that the caller knows.

    Nothing is marked in the stream: an interrupted caller reads its content again. `config` is the configuration
    without limits; `floor` is the last sequence known to be right, `held` the number of messages up to it.
    `progress` gets numbers of newly stored messages. Raises RefusedError for other content after `floor`
    (`NotOursError`) or too many fillers. After a NatsError the same call continues.
    """
    part = MessagesPart(messages, floor)
    check_fillers(name, missing(part), options.filler_limit)
    stream_fill = StreamFill(js, name, config, part, options, progress)
    stream_fill.writes_part(str(config.get("description") or ""), held)
    retry = Retry(js.connection, options.patience)
    await _fill(stream_fill, retry)
    fillers = stream_fill.loader.filled
    return AppendResult(name, None, part.count, stream_fill.found, fillers, held + part.count, retry.interruptions)


async def _fill(stream_fill: StreamFill, retry: Retry) -> None:
    """Sends the missing messages of a stream until all are stored."""
    try:
        await retry.repeat(stream_fill.fill, lambda: stream_fill.reported)
    finally:
        stream_fill.loader.close()


async def check_part(js: JetStream, part: AppendResult) -> None:
    """Checks that a part is complete in its stream, and that no other writer is active; else raises RefusedError."""
    info = await js.stream_info(part.stream)
    if info is None:
        raise RefusedError(f"stream {part.stream} was removed while it was written to", "write it again")
    mark = AppendMark.of(info["config"])
    if part.mark is None or mark is None:
        return  # complete; its limits apply, which may remove messages
    if mark != part.mark:
        raise RefusedError(
            f"stream {part.stream}: sequences {mark.first} to {mark.last} are being written, and not "
            f"{part.mark.first} to {part.mark.last}",
            "two jobs write to the same stream: wait until one has finished, then run the other again",
        )
    messages, last = (int(info["state"][name]) for name in ("messages", "last_seq"))
    if last < mark.last or messages < part.total:
        raise NotOursError(
            f"stream {part.stream} holds {messages} messages up to sequence {last}, expected {part.total} up to "
            f"{mark.last}: a server was killed before it had stored all that it had acknowledged, or a client deletes "
            "messages",
            "run it again: missing messages are written",
        )


async def finish_part(js: JetStream, config: Mapping[str, Any], part: AppendResult) -> None:
    """Sets the final configuration of a stream after `check_part`, with its limits, unless it has it already."""
    info = await js.stream_info(part.stream)
    if part.mark is None or info is None or AppendMark.of(info["config"]) is None:
        return
    await js.update_stream({**info["config"], **settings.final_config({**config, "name": part.stream})})


@dataclass
class _StreamAppend:
    """One part on its way into a stream."""

    _js: JetStream
    _name: str
    _config: Mapping[str, Any]
    _messages: Messages
    _options: PublishOptions
    there: bool = False  #: the stream existed

    async def begin(self) -> AppendMark | None:
        """Reads the state of the stream and marks it; a missing stream is created later, with its mark."""
        info = await self._js.stream_info(self._name)
        mark = AppendMark(self._messages.first, self._messages.last)
        self.there = info is not None
        if info is None:
            self._check_gaps(mark.floor)
            return mark
        settings.check_fixed(self._name, info["config"], self._config)
        there = AppendMark.of(info["config"])
        if there is None:
            return await self._mark_complete_stream(info, mark)
        mark = self._continuation_mark(there, mark)
        self._check_gaps(max(int(info["state"]["last_seq"]), mark.floor))
        if mark != there:
            await self._js.update_stream({**info["config"], "description": str(mark)})
        return await self._recount(info, mark)

    def stream_fill(self, mark: AppendMark) -> StreamFill:
        part = MessagesPart(self._messages, mark.floor)
        stream_fill = StreamFill(self._js, self._name, self._config, part, self._options)
        kept = mark.held - extent(part, mark.whole).messages if mark.whole else None
        stream_fill.writes_part(str(mark), kept)
        return stream_fill

    async def _mark_complete_stream(self, info: Mapping[str, Any], mark: AppendMark) -> AppendMark | None:
        """Marks a complete stream, which may be a new, empty one."""
        if differences := settings.differences(info["config"], self._config):
            words = "; ".join(f"{name} is {there!r}, asked for {wanted!r}" for name, there, wanted in differences)
            raise RefusedError(
                f"stream {self._name} already exists with other settings: {words}",
                "use its settings, or change them on the server first",
            )
        state = info["state"]
        mark = replace(mark, whole=int(state["last_seq"]), held=int(state["messages"]))
        # Before the stream is touched: it may belong to another application.
        part = MessagesPart(self._messages, mark.floor)
        until = min(mark.whole, mark.last)
        reach = max(int(state["first_seq"]) - 1, extent(part, until, 0, MAX_WINDOW, MAX_WINDOW_BYTES).reach)
        await compare(self._js, self._name, part, reach, until, self._options.generation)
        if mark.whole >= mark.last:
            return None
        self._check_gaps(max(mark.whole, mark.floor))
        loading = settings.loading_config(self._config, self._messages.count)
        await self._js.update_stream({**info["config"], **loading, "description": str(mark)})
        return await self._recount(await self._js.stream_info(self._name) or info, mark)

    async def _recount(self, info: Mapping[str, Any], mark: AppendMark) -> AppendMark:
        """Counts the earlier messages again: limits may have removed some before they were lifted."""
        state = info["state"]
        if not mark.whole or int(state["last_seq"]) != mark.whole or int(state["messages"]) == mark.held:
            return mark
        mark = replace(mark, held=int(state["messages"]))
        await self._js.update_stream({**info["config"], "description": str(mark)})
        return mark

    def _continuation_mark(self, stored_mark: AppendMark, mark: AppendMark) -> AppendMark:
        """Returns the mark for continuing the part of another writer."""
        first_is_right = mark.first <= stored_mark.first if stored_mark.whole else mark.first == stored_mark.first
        if first_is_right and mark.last >= stored_mark.last:
            return replace(mark, whole=stored_mark.whole, held=stored_mark.held)
        raise UnfinishedError(
            f"stream {self._name}: sequences {stored_mark.first} to {stored_mark.last} are still being written, "
            f"and these are sequences {mark.first} to {mark.last}",
            f"write sequences {stored_mark.first} to {stored_mark.last} again first, or remove the stream",
        )

    def _check_gaps(self, after: int) -> None:
        part = MessagesPart(self._messages, self._messages.first - 1)
        lead = max(self._messages.first - 1 - after, 0)
        if missing(part) + lead <= self._options.filler_limit:
            return
        there = max(after, part.floor)
        missing_count = lead + (part.last - there) - (part.count - extent(part, there).messages)
        check_fillers(self._name, missing_count, self._options.filler_limit)
