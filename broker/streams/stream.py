"""A stream: what becomes of messages that are published to it, its limits, and what is taken out of it.

Facts: jetstream-server.md sections 5 to 8.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from broker.stores.streams.interface import Stored
from broker.stores.streams.kernels import measure_rows
from broker.streams import publish_headers
from broker.streams.api_errors import TOO_LARGE, RequestError, no_message, sealed, store_failed, stream_not_found
from broker.streams.headers import size_line, with_lines
from broker.streams.requests import dumps
from broker.streams.subject_mapping import SubjectMapping
from stantools.nats import frames as tables
from stantools.nats.subjects import is_literal, valid_pattern
from stantools.streamfiles.headers import located
from stantools.streamfiles.layout import MAX_RECORD_SIZE, MAX_SUBJECT_SIZE
from stantools.streamfiles.meta import CopiedState

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from broker.stores.streams.contents import SubjectFilter, SubjectRows
    from broker.stores.streams.interface import StreamStore
    from broker.streams.configuration import StreamConfig
    from broker.streams.quota import StorageQuota
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

#: Messages that are taken out one by one, and at a time.
_FEW: Final = 16
_PURGED: Final = 512
_MAX_SEQUENCE: Final = (1 << 62) - 1


class StreamFollower(Protocol):
    """Who learns what goes, and is asked what has to stay: a consumer."""

    @property
    def given(self) -> int:
        """The last sequence that it was given."""

    def removed(self, sequence: int, number: int) -> None:
        """A message, whose subject has a number, is about to go."""

    def purged(self, pattern: bytes, first: int) -> None:
        """A purge took out messages whose subjects match, or any; the first one that is left has a sequence."""

    def shrunk(self, below: int) -> None:
        """Many messages below a sequence are gone."""

    def renew(self) -> None:
        """The store is another one."""

    def needs(self, sequence: int, number: int) -> bool:
        """Returns whether a message, whose subject has a number, has to stay."""

    def wants(self, subject: bytes) -> bool:
        """Returns whether messages of a subject are for it."""


class CopySource(Protocol):
    """What a stream copies from another one."""

    key: bytes  #: names it
    position: int  #: everything up to this sequence of the other stream is copied, or was not wanted

    def stored(self, sequence: int, *, stays: bool) -> None:
        """The message that it copies has a sequence, and nothing went for it yet; it may go at once."""

    def info(self, now: int) -> dict[str, Any]:
        """Returns what answers say of it."""


class MessageMemory(NamedTuple):
    """What messages said about themselves: their ids as long as they count, their lifetimes."""

    ids: publish_headers.MessageIds
    lives: publish_headers.MessageLifetimes


def memories(store: StreamStore, config: StreamConfig, now: int) -> MessageMemory:
    """Finds out what the messages of a store said about themselves. A thread may do it, if it alone has the store."""
    ids, lives = publish_headers.MessageIds(), publish_headers.MessageLifetimes()
    contents = store.contents
    young = contents.first_since(now - config.duplicate_window)
    for message in _messages(store, contents.first if config.allow_msg_ttl else young):
        headers = publish_headers.said(message.header)
        if message.sequence >= young:
            ids.note(headers.get(publish_headers.MESSAGE_ID, b""), message.sequence, message.time)
        if config.allow_msg_ttl and headers:
            with contextlib.suppress(RequestError):
                lives.note(message.sequence, message.time, publish_headers.lifetime(headers))
    return MessageMemory(ids, lives)


def _messages(store: StreamStore, sequence: int) -> Iterator[Stored]:
    """Iterates over the messages from a sequence on."""
    while found := store.contents.matching(None, sequence, 256):
        for each in found:
            message = store.read(each)
            if message is not None:
                yield message
        sequence = found[-1] + 1


class Stream:
    """A stream: its configuration, its messages, and what may be added to them.

    Args:
        room: What all streams take together.
        config: Its configuration, checked.
        created: When it was made, in nanoseconds since 1970.
        store: Its messages.
        borrowed: The messages are somebody else's, who alone changes them.

    Attributes:
        config: Its configuration.
        created: When it was made, in nanoseconds since 1970.
        store: Its messages.
    """

    def __init__(
        self, room: StorageQuota, config: StreamConfig, created: int, store: StreamStore, *, borrowed: bool = False
    ) -> None:
        self.room, self.created, self.store = room, created, store
        self.borrowed = borrowed
        self.json_name = dumps(config.name)  #: its name in JSON
        self.label = config.name.encode()  #: its name in headers
        self.failure = ""  #: why nothing can be stored; empty if nothing is wrong
        self.rolling_up: Iterator[None] | None = None  #: takes out the rest of what the last message replaces
        self.deleted = False  #: it is no more: work that was interrupted ends
        self.counted = 0  #: bytes that are counted for it
        self._ids = publish_headers.MessageIds()
        self._lives = publish_headers.MessageLifetimes()
        self._grown = b""  # the subject of a message for which nothing has made room yet
        self.followers: list[StreamFollower] = []  #: its consumers
        self.copies: Sequence[CopySource] = ()  #: what it copies from others
        #: Messages that alone say, in their headers, how far that is.
        self.marks: set[int] = set()
        self.copied_end = store.contents.last + 1  #: the sequence after the last copy, or later
        self.unflushed = False  #: something was taken out since it was last flushed
        # What a message takes besides subject and payload, and more if it has headers.
        self._more = store.size_of(b"", b"", b"")
        self._headed = store.size_of(b"", b"x", b"") - self._more - 1
        #: What is to be published again, once it is flushed: subject, header block, payload.
        self.echoes: list[tuple[bytes, bytes, bytes]] = []
        self.configure(config)
        self.count()

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.name

    def configure(self, config: StreamConfig) -> None:
        """Takes on a configuration, which is checked."""
        self.config = config
        transform, again = config.subject_transform, config.republish
        self._mapping = SubjectMapping(transform["src"], transform["dest"]) if transform else None
        self._again = SubjectMapping(again["src"], again["dest"]) if again and again["dest"] else None
        most = config.max_msgs_per_subject
        self._limited = max(config.max_msgs, config.max_bytes, most) > 0
        # Each message is looked at by itself.
        self._particular = (
            config.sealed
            or self._mapping is not None
            or self._again is not None
            or config.retention == "interest"
            or (most > 0 and (max(config.max_msgs, config.max_bytes) > 0 or config.discard_new_per_subject))
        )

    # Publishing

    def publish(
        self, subject: bytes, header: bytes, payload: bytes, now: int, *, over: bool = False
    ) -> tuple[int, bool]:
        """Stores a message.

        Args:
            subject: Its subject.
            header: Header block; empty for none.
            payload: The payload.
            now: Nanoseconds since 1970.
            over: What is over the limits then may stay for the moment, until `trim` is called.

        Returns:
            Its sequence, and whether it was there before.

        Raises:
            ApiError: It is not stored, and why.
        """
        config = self.config
        if self.failure:
            raise store_failed(self.failure)
        if self._mapping is not None:
            subject = self._mapping.of(subject) or subject
        if config.sealed:
            raise sealed()
        self._check_size(header, payload)
        told = publish_headers.PLAIN
        if header and (headers := publish_headers.said(header)):
            publish_headers.check(headers, config, subject, self.store.contents)
            message_id = headers.get(publish_headers.MESSAGE_ID, b"")
            if message_id and (sequence := self._ids.find(message_id, now - config.duplicate_window)):
                return sequence, True
            publish_headers.check_last_id(headers, self._ids.last)
            replaces = publish_headers.rollup(headers, allowed=config.allow_rollup_hdrs)
            told = publish_headers.PublishHeaders(message_id, self._lifetime(headers, subject), replaces)
        return self._store(subject, header, payload, now, told, over=over), False

    def publish_rows(self, buffer: Buffer, frames: Frames, begin: int, end: int, now: int) -> int:
        """Stores messages that have come together, if there is nothing about any of them that needs a closer look.

        Args:
            buffer: Where they are.
            frames: Rows of a table.
            begin: The first row.
            end: The row behind the last.
            now: Nanoseconds since 1970.

        Returns:
            The sequence of the first one; 0: none is stored, they are to be published one by one.

        Raises:
            StorageError: They cannot be written.
        """
        if self.failure or self._particular:
            return 0
        config, store = self.config, self.store
        contents = store.contents
        most = config.max_msgs_per_subject
        headers, payloads, subjects, largest, longest = measure_rows(frames, begin, end)
        ids = self._new_ids(buffer, frames, begin, end, now) if headers else []
        if ids is None:
            return 0
        more, headed = self._more, self._headed
        size = payloads + subjects + (end - begin) * more + headers * headed
        if (
            largest + longest + more + headed > MAX_RECORD_SIZE
            or longest > MAX_SUBJECT_SIZE
            or contents.last >= _MAX_SEQUENCE - (end - begin)
            or 0 <= config.max_msg_size < largest
            or not self.room.has(config.storage, size)
        ):
            return 0
        if config.discard == "new" and (
            0 < config.max_msgs < contents.messages + end - begin or 0 < config.max_bytes < contents.bytes + size
        ):
            return 0
        if most > 0 and self.marks:
            self.keep_copied()
        sequence = contents.last + 1
        gone = store.append_rows(now, buffer, frames, begin, end, max(most, 0))
        for row, message_id in enumerate(ids):
            self._ids.note(message_id, sequence + row, now)
        if self._ids.last and not ids:
            self._ids.note(b"", sequence, now)
        if most > 0:
            for follower in self.followers:
                for each, number in gone:
                    follower.removed(each, number)
            self.count()
        else:
            self.enforce()
        return sequence

    def _new_ids(self, buffer: Buffer, frames: Frames, begin: int, end: int, now: int) -> list[bytes] | None:
        """Returns the ids of messages, empty where there is none; None if one is not new, or a message says more."""
        found: list[bytes] = []
        oldest = now - self.config.duplicate_window
        for _, _, header, _ in tables.rows(buffer, frames, begin, end):
            headers = publish_headers.said(header) if header else publish_headers.NOTHING
            if len(header) > publish_headers.MOST_HEADERS or len(headers) > (publish_headers.MESSAGE_ID in headers):
                return None
            found.append(headers.get(publish_headers.MESSAGE_ID, b""))
            if found[-1] and self._ids.find(found[-1], oldest):
                return None
        named = [each for each in found if each]
        return found if len(set(named)) == len(named) else None

    def copy(
        self, source: CopySource, subject: bytes, header: bytes, payload: bytes, time: int, sequence: int = 0
    ) -> int:
        """Stores a message of another stream, unless its id is known.

        Args:
            source: What copies it.
            subject: Its subject.
            header: Header block; empty for none.
            payload: The payload.
            time: When it was stored there, or is here: nanoseconds since 1970.
            sequence: The sequence that it gets; 0 for the next.

        Returns:
            Its sequence; 0 if it is not stored, as its id is known.

        Raises:
            ApiError: It is not stored, and why.
        """
        config = self.config
        if config.sealed:
            raise sealed()
        self._check_size(header, payload)
        if self._mapping is not None:
            subject = self._mapping.of(subject) or subject
        headers = publish_headers.said(header)
        message_id, life, replaces = headers.get(publish_headers.MESSAGE_ID, b""), 0, ""
        if message_id and not sequence and self._ids.find(message_id, time - config.duplicate_window):
            return 0
        with contextlib.suppress(RequestError):
            life = publish_headers.lifetime(headers) if config.allow_msg_ttl else 0
            replaces = publish_headers.rollup(headers, allowed=True) if config.allow_rollup_hdrs else ""
        told = publish_headers.PublishHeaders(message_id, life, replaces)
        stored = self._store(subject, header, payload, time, told, sequence, source=source)
        for _ in self.rest_of_roll_up():
            pass
        return stored

    def _store(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        now: int,
        told: publish_headers.PublishHeaders,
        sequence: int = 0,
        *,
        source: CopySource | None = None,
        over: bool = False,
    ) -> int:
        """Stores a message if there is room for it. Returns its sequence, which may be given."""
        config, store = self.config, self.store
        size = store.size_of(subject, header, payload)
        if size > MAX_RECORD_SIZE or len(subject) > MAX_SUBJECT_SIZE or store.contents.last >= _MAX_SEQUENCE:
            raise store_failed("message is too large to be stored")
        if len(header) > publish_headers.MOST_HEADERS:
            raise RequestError(400, 10097, "header size exceeds maximum allowed of 64k")
        self.room.check(config.storage, size)
        if config.discard == "new":
            full = self._full(subject, size, replaces=bool(told.replaces))
            if full and not self._unwanted(subject):
                raise store_failed(full)
        if sequence:
            store.skip(sequence)
        again = self._again.of(subject) if self._again is not None else None
        if again == subject:
            # What it would become is no subject; as it is, it would come back.
            again = None
        last = store.contents.last_of(subject) if again else 0
        sequence = store.append(now, subject, header, payload)
        if again:
            self._echo(again, Stored(sequence, now, subject, header, payload), last)
        if header or self._ids.last:
            self._ids.note(told.message_id, sequence, now)
        if told.life:
            self._lives.note(sequence, now, told.life)
        wanted = config.retention != "interest" or self._wanted(sequence)
        if source is not None:
            # What goes for it may be the last that says how far this source is: from now on that is said by this one.
            self.copied_end = sequence + 1
            source.stored(sequence, stays=wanted)
        if not wanted:
            # Nothing goes for it.
            self.take_out(sequence)
            self.count()
        elif over and config.retention == "limits" and not told.replaces:
            self._grown = subject
        else:
            self.enforce(subject)
        if told.replaces:
            self._roll_up(told.replaces, subject, sequence)
            self.count()
        return sequence

    def _unwanted(self, subject: bytes) -> bool:
        """Returns whether messages of a subject are not kept, as they are for no consumer."""
        return self.config.retention == "interest" and not any(each.wants(subject) for each in self.followers)

    def _lifetime(self, headers: Mapping[bytes, bytes], subject: bytes) -> int:
        """Returns how long a message is to be kept: nobody looks at that where it is not kept at all."""
        try:
            return publish_headers.lifetime(headers)
        except RequestError:
            if self._unwanted(subject):
                return 0
            raise

    def _echo(self, to: bytes, message: Stored, last: int) -> None:
        """Has a message published again, with where it comes from, after which one of its subject."""
        sequence, time, subject, header, payload = message
        lines = [b"Nats-Last-Sequence: %d" % last]
        if self.config.republish and self.config.republish.get("headers_only"):
            lines.append(size_line(payload))
            payload = b""
        block = located(header, self.label, subject, sequence, time)
        self.echoes.append((to, with_lines(block, *lines), payload))

    def remember(self, now: int) -> None:
        """Finds out anew what messages said about themselves."""
        self.take_over(memories(self.store, self.config, now))

    def take_over(self, found: MessageMemory) -> None:
        """Takes over what messages said about themselves."""
        self._ids, self._lives = found

    def _check_size(self, header: bytes, payload: bytes) -> None:
        if 0 <= self.config.max_msg_size < len(header) + len(payload):
            raise RequestError(400, TOO_LARGE, "message size exceeds maximum allowed")

    def _full(self, subject: bytes, size: int, *, replaces: bool) -> str:
        """Returns why there is no room for a message in a stream that refuses new ones; empty if there is."""
        config, contents = self.config, self.store.contents
        over = 0 < config.max_bytes < contents.bytes + size
        if config.max_msgs_per_subject > 0:
            entry = contents.subjects.get(subject)
            if entry is not None and entry.count >= config.max_msgs_per_subject:
                if config.discard_new_per_subject and not replaces:
                    return "maximum messages per subject exceeded"
                # The oldest one of the subject makes room.
                found = contents.locate(contents.first_of(entry))
                return "maximum bytes exceeded" if over and found and found[0].sizes[found[1]] < size else ""
        if 0 < config.max_msgs <= contents.messages:
            return "maximum messages exceeded"
        return "maximum bytes exceeded" if over else ""

    def _roll_up(self, what: str, subject: bytes, sequence: int) -> None:
        """Takes out what a message replaces: at once if that is little, else `rolling_up` does it."""
        contents = self.store.contents
        if what == "sub" and is_literal(subject):
            entry = contents.subjects.get(subject)
            if entry is not None and entry.count <= _FEW:
                while entry.count > 1:
                    self.take_out(contents.first_of(entry))
                self._purged(subject)
                return
        wanted = contents.filter((subject,)) if what == "sub" else None
        work = self._roll_up_all(wanted, subject if what == "sub" else b"", sequence)
        if next(work, self) is not self:
            self.rolling_up = work

    def _roll_up_all(self, wanted: SubjectFilter | None, pattern: bytes, sequence: int) -> Iterator[None]:
        contents = self.store.contents
        try:
            yield from self._purge_below(wanted, sequence)
            self._purged(pattern)
        finally:
            contents.release(wanted)

    def rest_of_roll_up(self) -> Iterator[None]:
        """Returns work that takes out the rest of what the last message replaces, and can be interrupted."""
        work, self.rolling_up = self.rolling_up, None
        return work or iter(())

    # Limits

    def trim(self) -> None:
        """Takes out what is over the limits because of a message that was published.

        Raises:
            StorageError: What is left cannot be written.
        """
        grown, self._grown = self._grown, b""
        if grown:
            self.enforce(grown)

    def enforce(self, subject: bytes = b"") -> None:
        """Takes out what is over the limits.

        Args:
            subject: The only subject that has become more; empty for any.
        """
        if not self._limited:
            self.count()
            return
        contents, most = self.store.contents, self.config.max_msgs_per_subject
        if most > 0:
            one = contents.subjects.get(subject) if subject else None
            for entry in list(contents.subjects.values()) if not subject else () if one is None else (one,):
                while entry.count > most:
                    self.take_out(contents.first_of(entry))
        self._enforce_totals()
        self.count()

    def _enforce_totals(self) -> None:
        config, store = self.config, self.store
        contents = store.contents
        # A stream that refuses new messages keeps those that it has, also when its limits become lower.
        if config.discard == "old" and (
            0 < config.max_msgs < contents.messages or 0 < config.max_bytes < contents.bytes
        ):
            sequence, messages, size = contents.first, contents.messages, contents.bytes
            while messages and (0 < config.max_msgs < messages or 0 < config.max_bytes < size):
                found = contents.locate(sequence)
                if found is not None:
                    messages, size = messages - 1, size - found[0].sizes[found[1]]
                sequence += 1
            if sequence - contents.first <= _FEW:
                while contents.first < sequence and contents.messages:
                    self.take_out(contents.first)
            else:
                self._keep_copied_below(sequence)
                store.purge_below(sequence)
                self._shrunk(sequence)

    def enforce_all(self) -> Iterator[None]:
        """Takes out what is over the limits, which may be others now, as work that can be interrupted."""
        contents, most = self.store.contents, self.config.max_msgs_per_subject
        self._enforce_totals()
        steps = 0
        for entry in list(contents.subjects.values()) if most > 0 else ():
            while entry.count > most:
                self.take_out(contents.first_of(entry))
                steps += 1
                if steps % _FEW == 0:
                    yield
            steps += 1
            if steps % _PURGED == 0:
                yield
            if self.deleted or contents is not self.store.contents:
                return
        self.enforce()

    def expire(self, now: int) -> bool:
        """Takes out what is too old, and forgets the ids of messages that are older than the duplicates window.

        Returns:
            Whether there may be more: it does not take out more than some at a time.
        """
        more = False
        contents, config = self.store.contents, self.config
        self._ids.forget(now - config.duplicate_window)
        gone: list[bytes] = []
        for count, sequence in enumerate(islice(self._lives.ended(now), _PURGED), 1):
            more = count == _PURGED
            message = self.store.read(sequence)
            if message is not None:
                if not publish_headers.is_marker(message.header):
                    gone.append(message.subject)
                self.take_out(sequence)
        if config.max_age and contents.messages and contents.first_time <= now - config.max_age:
            end = contents.first_since(now - config.max_age + 1)
            some = [] if self._lives.forever else contents.matching(None, contents.first, _PURGED)
            if some and some[-1] + 1 < end:
                end, more = some[-1] + 1, True
            if config.subject_delete_marker_ttl:
                # Which subjects end is seen at the messages that go.
                there = filter(None, map(contents.locate, some))
                names = dict.fromkeys(contents.subject_at(*place) for place in there) if some else contents.subjects
                gone += [name for name in names if self._ends_unmarked(contents.subjects[name], end)]
            self._keep_copied_below(end)
            if self._lives.forever:
                self._expire_others(end)
            else:
                self.store.purge_below(end)
            self._shrunk(end)
        life = config.subject_delete_marker_ttl
        for subject in dict.fromkeys(gone) if life else ():
            if subject not in contents.subjects:
                self._lives.note(self.store.append(now, subject, publish_headers.marker(life), b""), now, life)
        self.count()
        return more

    def _ends_unmarked(self, entry: SubjectRows, end: int) -> bool:
        """Returns whether all messages of a subject are below a sequence, and the last one marks no end itself."""
        message = self.store.read(entry.last) if entry.last < end else None
        return message is not None and not publish_headers.is_marker(message.header)

    def _expire_others(self, end: int) -> None:
        """Takes out what is below a sequence, but for what does not go by age."""
        kept = self._lives.forever = {
            each for each in self._lives.forever if self.store.contents.locate(each) is not None
        }
        for message in _messages(self.store, self.store.contents.first):
            if message.sequence >= end:
                break
            if message.sequence not in kept:
                self.store.remove(message.sequence)

    @property
    def ages(self) -> bool:
        """Whether something goes by itself with time."""
        return bool(self._ids) or bool(self._lives) or (self.config.max_age > 0 and self.store.contents.messages > 0)

    def count(self) -> None:
        """Counts what it takes of what all streams may take; what is borrowed takes nothing."""
        if self.borrowed:
            return
        used = self.store.contents.bytes
        self.room.used[self.config.storage] += used - self.counted
        self.counted = used

    def flush(self) -> None:
        """Makes all that was done outlive this process, and notices what somebody else has done.

        Raises:
            StorageError: It cannot be written.
        """
        first = self.store.contents.first
        self.store.flush()
        self.unflushed = False
        if self.store.contents.first != first:
            self._shrunk(self.store.contents.first)

    # Removal

    def take_out(self, sequence: int, *, erase: bool = False) -> bool:
        """Takes out a message for good. Returns whether it was there."""
        if sequence in self.marks:
            self.keep_copied()
        found = self.store.contents.locate(sequence)
        if found is None:
            return False
        # With its last message a subject goes, and what filters know of it.
        number = found[0].subjects[found[1]]
        for follower in self.followers:
            follower.removed(sequence, number)
        self.unflushed = True
        return self.store.remove(sequence, erase=erase)

    def keep_copied(self) -> None:
        """Keeps how far it is with what it copies: before messages go that say so, and at the end.

        Raises:
            StorageError: It cannot be written.
        """
        self.marks.clear()
        if self.copies and not self.config.mirror:
            positions = {each.key: each.position for each in self.copies if each.position}
            self.store.keep_copied(CopiedState(self.copied_end, positions))

    def close(self) -> None:
        """Ends it without losing anything.

        Raises:
            StorageError: Something cannot be written.
        """
        if not self.failure:
            self.store.flush()
            # At the next start no message has to be read to find out how far it is with what it copies.
            self.copied_end = self.store.contents.last + 1
            self.keep_copied()
        self.store.close()

    def _keep_copied_below(self, sequence: int) -> None:
        """Keeps that before messages below a sequence go, if one of them says so."""
        if self.marks and min(self.marks) < sequence:
            self.keep_copied()

    def _number(self, sequence: int) -> int:
        found = self.store.contents.locate(sequence) if self.followers else None
        return found[0].subjects[found[1]] if found is not None else 0

    def _purged(self, pattern: bytes) -> None:
        if not self.followers:
            return
        contents = self.store.contents
        first = contents.first
        if pattern:
            wanted = contents.filter((pattern,))
            first = next(iter(contents.matching(wanted, first, 1)), contents.last + 1)
            contents.release(wanted)
        for follower in self.followers:
            follower.purged(pattern, first)

    def _shrunk(self, below: int) -> None:
        for follower in self.followers:
            follower.shrunk(below)

    def _wanted(self, sequence: int) -> bool:
        """Returns whether a consumer needs a message."""
        number = self._number(sequence)
        return any(follower.needs(sequence, number) for follower in self.followers)

    def done(self, sequences: Sequence[int]) -> bool:
        """A consumer is done with messages: they go if the retention says so. Returns whether one went."""
        if self.config.retention == "limits":
            return False
        gone = [each for each in sequences if self.config.retention == "workqueue" or not self._wanted(each)]
        went = [self.take_out(each) for each in gone]
        self.count()
        return any(went)

    @property
    def given(self) -> int:
        """The last sequence that a consumer was given; 0 without consumers."""
        return max((each.given for each in self.followers), default=0)

    def review(self, last: int, sequence: int = 0) -> Iterator[None]:
        """Takes out what no consumer needs, if the retention says so, as work that can be interrupted.

        Args:
            last: The last sequence to look at. What no consumer was given yet may have been for one that is kept in
                memory and is gone after a start: real servers keep it then.
            sequence: The first one to look at.
        """
        while self.config.retention == "interest" and not self.deleted:
            found = [each for each in self.store.contents.matching(None, sequence, _FEW) if each <= last]
            if not found:
                break
            for each in found:
                if not self._wanted(each):
                    self.take_out(each)
            sequence = found[-1] + 1
            self.count()
            yield

    def purge(self, patterns: tuple[()] | tuple[bytes], below: int, keep: int) -> Generator[None, None, int]:
        """Takes out messages, as work that can be interrupted: what is stored meanwhile stays.

        Args:
            patterns: Only those whose subjects match this one; none for all.
            below: Only those below this sequence; 0 for all.
            keep: So many of the last ones stay.

        Returns:
            How many went.

        Raises:
            ApiError: It is not allowed.
        """
        if self.config.sealed:
            raise sealed()
        if self.config.deny_purge:
            raise RequestError(500, 10110, "stream purge not permitted")
        contents = self.store.contents
        if patterns and not all(map(valid_pattern, patterns)):
            return 0
        end = contents.last + 1
        wanted = yield from contents.make_filter(patterns)
        try:
            if keep:
                below = self._keeping(wanted, keep)
                if below <= contents.first:
                    self._purged(b"".join(patterns))
                    return 0
            if wanted is None and (not below or below > contents.last):
                before = contents.messages
                if self.marks:
                    self.keep_copied()
                self.store.purge_all(min(max(below, contents.last + 1), _MAX_SEQUENCE))
                self._shrunk(contents.first)
                self.count()
            else:
                before = yield from self._purge_below(wanted, below or end)
            self._purged(b"".join(patterns))
            return before
        finally:
            contents.release(wanted)

    def _purge_below(self, wanted: SubjectFilter | None, below: int) -> Generator[None, None, int]:
        """Takes out what matches and is below a sequence, some of it at a time. Returns how many messages went."""
        contents = self.store.contents
        gone, start = 0, contents.first
        try:
            while found := contents.matching(wanted, start, _PURGED):
                start = found[-1] + 1
                before, part = contents.messages, min(start, below)
                self._keep_copied_below(part)
                if wanted is None:
                    self.store.purge_below(part)
                else:
                    self.store.purge_matching(wanted, part)
                gone += before - contents.messages
                if start >= below:
                    break
                yield
                self.check_there()
                if contents is not self.store.contents:
                    raise store_failed("the stream was opened again meanwhile")
        finally:
            self._shrunk(min(start, below))
            self.count()
            self.unflushed = True
        return gone

    def _keeping(self, wanted: Any, keep: int) -> int:
        """Returns the sequence below which messages go if so many of the last ones that match stay."""
        for segment, rows in reversed(list(self.store.contents.rows(wanted))):
            if len(rows) >= keep:
                return int(rows[-keep]) + segment.first
            keep -= len(rows)
        return 0

    def delete_message(self, sequence: int, *, erase: bool) -> None:
        """Takes out a message.

        Raises:
            ApiError: It is not allowed, or is not there.
        """
        if self.config.sealed:
            raise sealed()
        if self.config.deny_delete:
            raise RequestError(500, 10057, "message delete not permitted")
        contents = self.store.contents
        if sequence < contents.first and self.config.storage == "file":
            raise RequestError(500, 10057, "no message found")
        if sequence > contents.last and self.config.storage == "file":
            raise RequestError(500, 10057, "stream store EOF")
        if not self.take_out(sequence, erase=erase):
            raise RequestError(400, 10043, f"sequence {sequence} not found")
        self.count()

    # Reading

    def check_there(self) -> None:
        """Checks that the stream was not deleted since some work began.

        Raises:
            ApiError: It was.
        """
        if self.deleted:
            raise stream_not_found()

    def message(self, sequence: int) -> Stored:
        """Returns a message.

        Raises:
            ApiError: It is not there.
            StorageError: It cannot be read.
        """
        found = self.store.read(sequence)
        if found is None:
            raise no_message()
        return found
