"""Streams that copy others: mirrors, with the sequences and times of their origin, and streams with sources.

Messages are read from the origin's store after their flush there. Once the copies are flushed, they are acknowledged
to an origin with interest or work queue retention.

The position of a mirror is its own last sequence. The position of a source is in the headers of its copies. The last
existing copy is its *mark*. Before a mark is deleted, `sources.db` gets the position of each source, and the
sequence of the stream at that time. So after a kill a position is the one in the file, or that of a later header.
The file is written after the messages that it describes. If a loss of power takes these messages, the last ones are
copied again, unless a header shows that their copies exist.

Facts: jetstream-server.md section 16.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from broker.log import NATS
from broker.stores.interface import StorageError
from broker.streams.api_errors import TOO_LARGE, RequestError, stream_not_found
from broker.streams.headers import with_lines, without
from broker.streams.publish_headers import (
    EXPECTED,
    MESSAGE_ID,
    PublishHeaders,
    lifetime,
    parse_nats_headers,
    rollup,
)
from broker.streams.stream_source import HEADER, SourceOrigin
from stantools.nats.interest import finished
from stantools.nats.subjects import matches_any
from stantools.streamfiles.meta import CopiedState

if TYPE_CHECKING:
    from broker.ports import Clock
    from broker.stores.streams.subject_filter import SubjectFilter
    from broker.streams.stream import Stream

#: messages copied before others run
_MOST: Final = 256
#: message headers read between two steps
_FEW: Final = 32


def _is_dropped_header(line: bytes) -> bool:
    """Returns whether a header is not copied: the publisher's expectations, and the origin's own source."""
    return line.startswith((EXPECTED, HEADER + b":"))


class StreamCopy:
    """The copy of one origin in a stream; it follows the origin as a `broker.streams.followers.StreamFollower`.

    Every message of the origin up to `position` is copied or not wanted.
    """

    def __init__(self, target: Stream, origin: SourceOrigin) -> None:
        self.target, self.origin = target, origin
        self.key = b" ".join(origin.key)  #: key of the origin among those of the target
        self.position = 0
        self._copying = 0  #: sequence of the message that is being copied
        self._mark = 0  #: sequence of the last copy; 0 if it is deleted
        self.unmarked = False  #: whether the position is beyond that of every copy
        self.moved: list[int] = []  #: sequences of copied messages, not yet acknowledged to the origin
        self.blocked = False  #: whether the target accepts nothing more for now
        self._settled = self._active = 0
        self._missing = False
        self._from: Stream | None = None
        self._filter: SubjectFilter | None = None

    def attach(self, stream: Stream | None) -> None:
        """Continues with the stream that has the origin's name; None if it was deleted."""
        if self._from is not stream:
            if self._from is not None:
                self._from.store.contents.release(self._filter)
                if self in self._from.followers:
                    self._from.followers.remove(self)
                self._filter = None
                self.moved.clear()
            self._from = stream
            if stream is not None:
                self.renew()
                if not self.position:
                    self.resume(0)
        if stream is not None and stream.config.retention != "limits" and self not in stream.followers:
            stream.followers.append(self)

    def resume(self, position: int, lost: int = 0) -> None:
        """Continues after a copied sequence; 0 if none was copied.

        If the last `lost` copies may be missing, these messages are copied again.
        """
        self.moved.clear()
        self._mark = 0
        if lost and position:
            before = self._wanted_sequences(position)[-lost:]
            position = before[0] - 1 if len(before) == lost else 0
        self.position = self._settled = position or self._start_position()

    def resume_at(self, mark: int, position: int, time: int) -> None:
        """Continues after the last copy, unless `position` is already beyond it.

        Copied messages may still be in an origin with interest or work queue retention, if the process was killed
        before their acknowledgement. Those stored up to `time` are acknowledged; later ones belong to a stream
        of the same name made after it. `mark` is the sequence of the last copy, 0 if it is deleted; `position` is
        the sequence in the origin.
        """
        self._mark = mark
        if mark:
            self.target.copy_positions.marks.add(mark)
        self.position = self._settled = max(self.position, position)
        if self._from is not None and self in self._from.followers:
            begin, contents = self._start_position(), self._from.store.contents
            young = contents.first_since(time + 1)
            self.moved = [each for each in self._wanted_sequences(position) if begin < each < young]

    def _start_position(self) -> int:
        """Returns the sequence before the first message to copy."""
        origin = self.origin
        if not origin.start and origin.start_time and self._from is not None:
            return self._from.store.contents.first_since(origin.start_time) - 1
        return max(origin.start - 1, 0)

    def _wanted_sequences(self, last: int) -> list[int]:
        """Returns the wanted sequences of the origin up to `last`."""
        rows = self._from.store.contents.rows(self._filter, last + 1) if self._from is not None else ()
        return [sequence for segment, some in rows for sequence in (some + segment.first).tolist()]

    def run(self, now: int) -> int:
        """Copies the next messages, up to a limit. Returns the number of messages examined."""
        self._missing = self._from is None
        if self._from is None or self._from.failure or self.target.failure:
            return 0
        self.blocked = False
        self._active = now
        contents = self._from.store.contents
        found = contents.matching(self._filter, self.position + 1, _MOST)
        for looked, sequence in enumerate(found):
            try:
                self._copy(sequence, now)
            except RequestError as error:
                if error.number != TOO_LARGE:
                    self.blocked = True
                    return looked
            if self in self._from.followers:
                self.moved.append(sequence)
            self.position = sequence
        if not found:
            self.position = max(self.position, contents.last)
        return len(found)

    def _copy(self, sequence: int, now: int) -> None:
        assert self._from is not None
        try:
            message = self._from.store.read(sequence)
        except StorageError as error:
            NATS.error("Stream %r skips a message of %r: %s", self.target.name, self._from.name, error.message)
            return
        if message is None:
            return
        self._copying = sequence
        header = without(message.header, _is_dropped_header) if b"Nats-" in message.header else message.header
        subject = self.origin.subject(message.subject)
        if self.origin.mirror:
            self._store(subject, header, message.payload, message.time, sequence)
            return
        header = with_lines(header, self.origin.mark(sequence, message.subject))
        copied = self._store(subject, header, message.payload, now)
        if not copied or copied != self._mark:
            self.unmarked = True

    def _store(self, subject: bytes, header: bytes, payload: bytes, time: int, sequence: int = 0) -> int:
        """Stores a copy in the target. Returns its sequence; 0 for a duplicate of another message of the target.

        `sequence` is that in the target, 0 for the next one.
        """
        target = self.target
        subject = target.admit(subject, len(header) + len(payload))
        headers = parse_nats_headers(header)
        message_id, life, replaces = headers.get(MESSAGE_ID, b""), 0, ""
        if message_id and not sequence and target.find_duplicate(message_id, time):
            return 0
        # The origin has accepted the message, so headers that the target would refuse are ignored.
        with contextlib.suppress(RequestError):
            life = lifetime(headers) if target.config.allow_msg_ttl else 0
            replaces = rollup(headers, allowed=True) if target.config.allow_rollup_hdrs else ""
        parsed = PublishHeaders(message_id, life, replaces)
        copied = target.append(subject, header, payload, time, parsed, sequence, source=self)
        for _ in target.rest_of_roll_up():
            pass
        return copied

    def stored(self, sequence: int, *, stays: bool) -> None:
        """The target has stored the current message under `sequence`; without `stays` it may be deleted at once."""
        self.position = self._copying
        if stays and not self.origin.mirror:
            marks = self.target.copy_positions.marks
            marks.discard(self._mark)
            marks.add(sequence)
            self._mark = sequence

    def settle(self) -> bool:
        """Acknowledges flushed copies to the origin. Returns whether that deleted messages there.

        Then the origin needs a flush. Raises `StorageError` if the origin cannot be written.
        """
        self._settled = max([self._settled, *self.moved])
        went = self._from is not None and self._from.done(self.moved)
        self.moved.clear()
        return went

    @property
    def last_delivered(self) -> int:
        """The last sequence that is copied for certain."""
        return self._settled

    def was_given(self, sequence: int, number: int) -> bool:
        """Returns whether a message was to be copied, and is; `number` is that of its subject."""
        return sequence <= self._settled and (self._filter is None or self._filter.has(number))

    def needs(self, sequence: int, number: int) -> bool:
        """Returns whether a message is still to be copied; `number` is that of its subject."""
        return sequence > self._settled and (self._filter is None or self._filter.has(number))

    def wants(self, subject: bytes) -> bool:
        return matches_any(self.origin.patterns, subject)

    def removed(self, sequence: int, number: int) -> None:
        """Nothing to do: a deleted message is not found later."""

    def purged(self, pattern: bytes, first: int) -> None:
        """Nothing to do: deleted messages are not found later."""

    def shrunk(self, below: int) -> None:
        """Nothing to do: deleted messages are not found later."""

    def renew(self) -> None:
        """The origin has a new store."""
        assert self._from is not None
        self._filter = self._from.store.contents.filter(self.origin.patterns)

    def info(self, now: int) -> dict[str, Any]:
        """Returns the members of an answer about this origin."""
        contents = self._from.store.contents if self._from is not None else None
        found: dict[str, Any] = {
            "name": self.origin.name,
            "lag": contents.count(self._filter, self.position + 1) if contents is not None else 0,
            "active": now - self._active if self._active else -1,
        }
        for name in ("filter_subject", "subject_transforms"):
            if name in self.origin.values:
                found[name] = self.origin.values[name]
        if self._missing:
            found["error"] = stream_not_found().as_json()
        return found


class StreamCopies:
    """The copies of all streams.

    `streams` has all streams by name. `wake` is called when `run` has work, `failed` when a stream cannot be
    written.
    """

    def __init__(
        self,
        streams: Mapping[str, Stream],
        clock: Clock,
        wake: Callable[[], None],
        failed: Callable[[Stream, StorageError], None],
    ) -> None:
        self._streams, self._clock, self._wake, self._failed = streams, clock, wake, failed
        self._of: dict[Stream, list[StreamCopy]] = {}
        #: copies by the name of their origin
        self._from: dict[str, list[StreamCopy]] = {}
        self._ready: dict[StreamCopy, None] = {}
        #: Streams whose copies do not show the position of each origin.
        self._unmarked: dict[Stream, None] = {}
        #: Copies with acknowledgements to send after a flush, and copies that cannot continue now.
        self._unacknowledged: dict[StreamCopy, None] = {}
        self._blocked: dict[StreamCopy, None] = {}

    @property
    def busy(self) -> bool:
        """Whether `run` may have work."""
        return bool(self._ready)

    def adopt(self, stream: Stream) -> Iterator[None]:
        """Starts the configured copies of a stream and the copies from it, in steps."""
        known = {each.origin.key: each for each in self._of.get(stream, ())}
        copies, fresh = [], []
        for values in stream.config.origins:
            origin = SourceOrigin(values, mirror=bool(stream.config.mirror))
            copy = known.pop(origin.key, None)
            if copy is None:
                fresh.append(copy := StreamCopy(stream, origin))
                copy.attach(self._streams.get(origin.name))
            copies.append(copy)
        # New copies run once their position is known.
        ahead = yield from self._resume(stream, fresh)
        if stream.deleted:
            for copy in fresh:
                copy.attach(None)
            return
        for copy in fresh:
            copy.attach(self._streams.get(copy.origin.name))
            self._from.setdefault(copy.origin.name, []).append(copy)
        self._drop(known.values())
        self._of.pop(stream, None)
        if copies:
            self._of[stream] = copies
        stream.copy_positions.sources = copies
        stream.copy_positions.kept = not stream.config.mirror
        if known:
            self._unmarked[stream] = None
        if ahead:
            self._keep(stream)
        for copy in self._from.get(stream.name, ()):
            copy.attach(stream)
        self._begin((*copies, *self._from.get(stream.name, ())))

    def forget(self, stream: Stream) -> None:
        """The stream was deleted."""
        self._drop(self._of.pop(stream, ()))
        self._unmarked.pop(stream, None)
        left = self._from.get(stream.name, ())
        for copy in left:
            copy.attach(None)
        self._begin(left)

    def _drop(self, copies: Iterable[StreamCopy]) -> None:
        for copy in copies:
            copy.attach(None)
            self._from[copy.origin.name].remove(copy)
            for some in (self._ready, self._unacknowledged, self._blocked):
                some.pop(copy, None)

    def _begin(self, copies: Iterable[StreamCopy]) -> None:
        self._ready.update(dict.fromkeys(copies))
        if self._ready:
            self._wake()

    def renew(self, stream: Stream) -> None:
        """The stream was opened again with its flushed messages; its copies continue later."""
        copies = self._of.get(stream, [])
        stream.copy_positions.end = stream.store.contents.last + 1
        if finished(self._resume(stream, copies)):
            self._keep(stream)
        self._blocked.update(dict.fromkeys(copies))
        for copy in self._from.get(stream.name, ()):
            if copy not in stream.followers:
                copy.renew()

    def _resume(self, stream: Stream, copies: list[StreamCopy]) -> Generator[None, None, bool]:
        """Finds the positions of copies, in steps. Returns whether the file of positions is ahead of the messages.

        Then the file must be rewritten before the stream stores more.
        """
        contents = stream.store.contents
        left = [copy for copy in copies if not copy.origin.mirror]
        kept = (stream.store.copied() if left else None) or CopiedState(0, {})
        lost = max(kept.end - 1 - contents.last, 0)
        for copy in copies:
            if copy.origin.mirror:
                copy.resume(contents.last)
                copy.resume_at(0, contents.last, contents.last_time)
            else:
                copy.resume(kept.positions.get(copy.key, 0), lost)
        if left:
            yield from _resume_by_headers(stream, left, kept, 0 if lost else kept.end)
        self._unacknowledged.update((copy, None) for copy in copies if copy.moved)
        return lost > 0

    def _keep(self, stream: Stream) -> None:
        try:
            stream.copy_positions.save(stream.store)
        except StorageError as error:
            NATS.error("Stream %r: %s", stream.name, error.message)

    def feeds(self, stream: Stream) -> bool:
        """Returns whether another stream copies from this one."""
        return stream.name in self._from

    def changed(self, stream: Stream) -> None:
        """The stream has new messages, already flushed."""
        for copy in self._from.get(stream.name, ()):
            self._ready[copy] = None

    def run(self, deadline: float) -> Iterator[Stream]:
        """Copies messages until `deadline` (`perf_counter`); iterates over the changed streams."""
        now = self._clock.wall()
        while self._ready:
            copy = next(iter(self._ready))
            del self._ready[copy]
            try:
                if copy.run(now):
                    self._ready[copy] = None
                    yield copy.target
            except StorageError as error:
                self._failed(copy.target, error)
                continue
            if copy.moved:
                self._unacknowledged[copy] = None
            if copy.unmarked:
                copy.unmarked = False
                self._unmarked[copy.target] = None
            if copy.blocked:
                self._blocked[copy] = None
            if self._ready and perf_counter() > deadline:
                self._wake()
                break

    def settle(self) -> Iterator[Stream]:
        """Saves positions and acknowledges flushed copies; iterates over the origins that deleted messages."""
        unmarked, self._unmarked = self._unmarked, {}
        for stream in unmarked:
            self._keep(stream)
        for copy in list(self._unacknowledged):
            try:
                if copy.settle():
                    yield self._streams[copy.origin.name]
            except StorageError as error:
                self._failed(self._streams[copy.origin.name], error)
                continue
            del self._unacknowledged[copy]
            self._wake()

    def run_checks(self) -> None:
        """Retries the copies that the target had refused."""
        blocked, self._blocked = self._blocked, {}
        self._begin(blocked)


def _resume_by_headers(stream: Stream, left: list[StreamCopy], kept: CopiedState, end: int) -> Iterator[None]:
    """Resumes copies after their last messages in a stream, which have a header that names the origin's message.

    Below `end` the positions in the file count, for the sources that are in it.
    """
    for segment, rows in reversed(list(stream.store.contents.rows(None))):
        for row in reversed(rows.tolist()):
            sequence = segment.first + row
            if sequence < end:
                left = [copy for copy in left if copy.key not in kept.positions]
            if row % _FEW == 0:
                yield
            value = _marked(stream, sequence) if left else b""
            for copy in [copy for copy in left if copy.origin.marked(value)]:
                copy.resume_at(sequence, copy.origin.marked(value), segment.times[row])
                left.remove(copy)
            if not left:
                return


def _marked(stream: Stream, sequence: int) -> bytes:
    """Returns the origin of a message as its header names it."""
    try:
        message = stream.store.read(sequence)
    except StorageError:
        return b""
    return parse_nats_headers(message.header).get(HEADER, b"") if message is not None else b""
