"""A part of a channel written behind what a stream holds, by whoever is asked to, as often as they like, even at once.

`publish_stream` fills a stream with all that there is, and one process does it. Here the messages are a part: the first
ones, or those that have come since. Several processes may write the same part, one after the other or at the same time:
what lies where is decided by the server (see `headers.guarded`), so that whoever comes late finds it done.

A stream that is being written to does not look complete. From before the first message until `finish_part` its
description says which sequences are under way, and it has no limits:

    stantools: not complete, sequences 101 to 200 are being written behind 100 (100 messages)

That is all the memory there is. The next writer finds in it what was there before, and that the stream may only be gone
on with by one that has these sequences, too: with others behind them, messages would be missing in between for good.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from stantools.errors import RefusedError, StantoolsError
from stantools.migration.publish import settings
from stantools.migration.publish.filling import Filling, probe
from stantools.migration.publish.loader import MAX_WINDOW_BYTES, Acks, Publishing
from stantools.migration.publish.resume import NotOursError, check_fillers, compare, extent, missing
from stantools.migration.tasks import Retry
from stantools.nats.publishing.guarded import MAX_WINDOW

if TYPE_CHECKING:
    from stantools.nats.jetstream import JetStream
    from stantools.streamfiles.batch import Batch, Messages

_HOW: Final = Publishing()
_MARK: Final = re.compile(
    r"stantools: not complete, sequences (\d+) to (\d+) are being written(?: behind (\d+) \((\d+) messages\))?"
)


class UnfinishedError(RefusedError):
    """Other messages were begun to be written to a stream, and have to be finished first."""


@dataclass(frozen=True)
class Mark:
    """What is being written to a stream, according to its description."""

    first: int  #: the first sequence
    last: int  #: the last one
    whole: int = 0  #: the last sequence before it was begun; 0 if these are the stream's first messages
    held: int = 0  #: how many messages there were then

    def __str__(self) -> str:
        behind = f" behind {self.whole} ({self.held} messages)" if self.whole else ""
        return f"stantools: not complete, sequences {self.first} to {self.last} are being written{behind}"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Mark | None:
        """Reads the mark of a stream; None if it is complete."""
        found = _MARK.match(str(config.get("description") or ""))
        return cls(*(int(number or 0) for number in found.groups())) if found else None

    @property
    def floor(self) -> int:
        """What is behind this sequence is in the part, or nowhere."""
        return min(self.whole, self.first - 1) if self.whole else self.first - 1


@dataclass(frozen=True)
class MessagesPart:
    """The `Messages` of a part. The sequences between its floor and its first message count as missing ones."""

    messages: Messages
    floor: int  #: the sequence that it begins behind

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self.messages.count

    @property
    def first(self) -> int:
        """The first sequence, whether there is a message or not."""
        return self.floor + 1

    @property
    def last(self) -> int:
        """The last sequence."""
        return self.messages.last

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Batch]:
        """Yields the messages; see `Messages.read`."""
        return self.messages.read(after=after, until=until)


@dataclass(frozen=True)
class Appended:
    """A part that is in its stream."""

    stream: str
    mark: Mark | None  #: what the stream says about it until it is finished; None if all was there and complete before
    messages: int  #: messages of the part
    found: int  #: how many of them were there before
    fillers: int = 0  #: fillers that were stored and deleted for gaps
    total: int = 0  #: messages that the stream must hold now; more may have come since
    #: How often something had to be done again, because the connection broke or a server restarted.
    interruptions: int = 0


async def append_part(
    js: JetStream,
    name: str,
    config: Mapping[str, Any],
    messages: Messages,
    *,
    how: Publishing = _HOW,
) -> Appended:
    """Takes care that messages are in a stream, each at its own sequence, once. `finish_part` is to follow.

    Messages that are there already must be the same ones; the last of them are compared. What limits have removed from
    the beginning of the stream is not missing.

    Args:
        js: Where to.
        name: The stream; it is made if it is not there.
        config: The configuration that it gets in the end.
        messages: What to write, at least one message.
        how: How messages are published.

    Raises:
        RefusedError: The stream has other settings, holds something else (`NotOursError`), waits for other messages
            first, or it would take too many fillers.
        PermissionDeniedError: The user may not do what it takes.
        NatsError: The server refuses, or is gone for too long. The same call goes on from there.
        StantoolsError: A message does not fit into the server, or the source cannot be read.
    """
    job = _Append(js, name, settings.final_config({**config, "name": name}), messages, how)
    retry = Retry(js.connection, how.patience)
    mark = await retry.repeat(job.begin)
    if mark is None:
        return Appended(name, None, messages.count, messages.count, interruptions=retry.interruptions)
    filling = job.filling(mark)
    if not job.there:
        await probe(js, name, filling, consumers=False)
    try:
        await _fill(js, name, filling, retry)
    except StantoolsError as problem:
        await filling.explain(problem)
        raise
    total = messages.count + (filling.besides or 0)
    fillers = filling.loader.filled
    return Appended(name, mark, messages.count, filling.found, fillers, total, retry.interruptions)


async def extend_stream(
    js: JetStream,
    name: str,
    config: Mapping[str, Any],
    messages: Messages,
    floor: int,
    held: int,
    *,
    how: Publishing = _HOW,
    progress: Callable[[int], None] | None = None,
) -> Appended:
    """Takes care that messages are in a stream that only the caller writes, behind what he knows to be there.

    Nothing is marked in the stream: whoever was interrupted finds out again what it holds.

    Args:
        js: Where to.
        name: The stream.
        config: Its configuration while it is written, without limits.
        messages: What to write, above `floor`.
        floor: The last sequence that is known to be right.
        held: Messages up to there.
        how: How messages are published.
        progress: Called with how many more messages are stored.

    Raises:
        RefusedError: It holds something else behind `floor` (`NotOursError`), or it would take too many fillers.
        NatsError: The server refuses, or is gone for too long. The same call goes on from there.
        StantoolsError: A message does not fit into the server, or the source cannot be read.
    """
    part = MessagesPart(messages, floor)
    check_fillers(name, missing(part), how.filler_limit)
    filling = Filling(js, name, config, part, how, progress)
    filling.writes_part(str(config.get("description") or ""), held)
    retry = Retry(js.connection, how.patience)
    await _fill(js, name, filling, retry)
    fillers = filling.loader.filled
    return Appended(name, None, part.count, filling.found, fillers, held + part.count, retry.interruptions)


async def _fill(js: JetStream, name: str, filling: Filling, retry: Retry) -> None:
    """Sends what a stream lacks, as often as it takes."""
    acks = Acks.open(js.connection, name)
    try:
        await retry.repeat(lambda: filling.fill(acks), lambda: filling.reported)
    finally:
        acks.close()


async def check_part(js: JetStream, part: Appended) -> None:
    """Checks that a part is still in its stream, all of it, and that nobody else is writing to it.

    Raises:
        RefusedError: It is not so.
        NatsError: The server does not answer.
    """
    info = await js.stream_info(part.stream)
    if info is None:
        raise RefusedError(f"stream {part.stream} was removed while it was written to", "write it again")
    mark = Mark.of(info["config"])
    if part.mark is None or mark is None:
        return  # it is complete; limits, which may remove messages, apply
    if mark != part.mark:
        raise RefusedError(
            f"stream {part.stream}: sequences {mark.first} to {mark.last} are being written, and not "
            f"{part.mark.first} to {part.mark.last}",
            "two jobs write to the same stream: let one finish, then run the other again",
        )
    messages, last = (int(info["state"][name]) for name in ("messages", "last_seq"))
    if last < mark.last or messages < part.total:
        raise NotOursError(
            f"stream {part.stream} holds {messages} messages up to sequence {last}, expected {part.total} up to "
            f"{mark.last}: a server was killed before it had stored all that it had acknowledged, or somebody deletes "
            "messages",
            "run it again: what is missing is written",
        )


async def finish_part(js: JetStream, config: Mapping[str, Any], part: Appended) -> None:
    """Sets the configuration of a stream that is complete, with its limits. Does nothing if it has it.

    Args:
        js: The server.
        config: The configuration.
        part: What was written, and seen by `check_part`.

    Raises:
        NatsError: The server refuses, or does not answer.
    """
    info = await js.stream_info(part.stream)
    if part.mark is None or info is None or Mark.of(info["config"]) is None:
        return
    await js.update_stream({**info["config"], **settings.final_config({**config, "name": part.stream})})


class _Append:
    """One part on its way into a stream."""

    def __init__(
        self,
        js: JetStream,
        name: str,
        config: Mapping[str, Any],
        messages: Messages,
        how: Publishing,
    ) -> None:
        self._js = js
        self._name = name
        self._config = config
        self._messages = messages
        self._how = how
        self.there = False

    async def begin(self) -> Mark | None:
        """Finds out where the stream stands, and marks it; one that is not there is made later, with its mark."""
        info = await self._js.stream_info(self._name)
        mark = Mark(self._messages.first, self._messages.last)
        self.there = info is not None
        if info is None:
            self._check_gaps(mark.floor)
            return mark
        settings.check_fixed(self._name, info["config"], self._config)
        there = Mark.of(info["config"])
        if there is None:
            return await self._begin_complete(info, mark)
        mark = self._continued(there, mark)
        self._check_gaps(max(int(info["state"]["last_seq"]), mark.floor))
        if mark != there:
            await self._update(info, {**info["config"], "description": str(mark)})
        return await self._counted(info, mark)

    def filling(self, mark: Mark) -> Filling:
        """Returns what fills the stream."""
        part = MessagesPart(self._messages, mark.floor)
        filling = Filling(self._js, self._name, self._config, part, self._how)
        kept = mark.held - extent(part, mark.whole).messages if mark.whole else None
        filling.writes_part(str(mark), kept)
        return filling

    async def _begin_complete(self, info: Mapping[str, Any], mark: Mark) -> Mark | None:
        """Marks a complete stream, which may be an empty one that somebody has made."""
        if differences := settings.differences(info["config"], self._config):
            words = "; ".join(f"{name} is {there!r}, asked for {wanted!r}" for name, there, wanted in differences)
            raise RefusedError(
                f"stream {self._name} already exists, with other settings: {words}",
                "ask for the settings that it has, or change them on the server first",
            )
        state = info["state"]
        mark = replace(mark, whole=int(state["last_seq"]), held=int(state["messages"]))
        # Before the stream is touched: it may be somebody else's.
        await self._compare(
            MessagesPart(self._messages, mark.floor), min(mark.whole, mark.last), int(state["first_seq"])
        )
        if mark.whole >= mark.last:
            return None
        self._check_gaps(max(mark.whole, mark.floor))
        loading = settings.loading_config(self._config, self._messages.count)
        await self._update(info, {**info["config"], **loading, "description": str(mark)})
        return await self._counted(await self._js.stream_info(self._name) or info, mark)

    async def _compare(self, part: MessagesPart, until: int, first: int) -> None:
        """Compares the last messages up to a sequence with those of the stream, which begins at `first`."""
        reach = max(first - 1, extent(part, until, 0, MAX_WINDOW, MAX_WINDOW_BYTES).reach)
        await compare(self._js, self._name, part, reach, until, self._how.generation)

    async def _counted(self, info: Mapping[str, Any], mark: Mark) -> Mark:
        """Counts again what was there before: limits may have removed something until the mark came and they went."""
        state = info["state"]
        if not mark.whole or int(state["last_seq"]) != mark.whole or int(state["messages"]) == mark.held:
            return mark
        mark = replace(mark, held=int(state["messages"]))
        await self._update(info, {**info["config"], "description": str(mark)})
        return mark

    def _continued(self, there: Mark, mark: Mark) -> Mark:
        """Returns the mark for going on with what another writer has begun."""
        first_is_right = mark.first <= there.first if there.whole else mark.first == there.first
        if first_is_right and mark.last >= there.last:
            return replace(mark, whole=there.whole, held=there.held)
        raise UnfinishedError(
            f"stream {self._name}: sequences {there.first} to {there.last} are being written to it and not all there; "
            f"these are {mark.first} to {mark.last}",
            f"write sequences {there.first} to {there.last} again first, or remove the stream",
        )

    async def _update(self, info: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        await self._js.update_stream({**config, "name": info["config"]["name"]})

    def _check_gaps(self, after: int) -> None:
        """Checks that not too many sequences are missing."""
        part = MessagesPart(self._messages, self._messages.first - 1)
        lead = max(self._messages.first - 1 - after, 0)
        if missing(part) + lead <= self._how.filler_limit:
            return
        there = max(after, part.floor)
        lacking = lead + (part.last - there) - (part.count - extent(part, there).messages)
        check_fillers(self._name, lacking, self._how.filler_limit)
