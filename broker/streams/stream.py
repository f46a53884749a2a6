"""A stream: it stores published messages, enforces its limits, and deletes messages.

Facts: jetstream-server.md sections 5 to 8.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from broker.stores.streams.interface import Stored
from broker.stores.streams.kernels import measure_rows
from broker.streams import publish_headers
from broker.streams.api_errors import TOO_LARGE, RequestError, no_message, sealed, store_failed, stream_not_found
from broker.streams.copy_positions import CopyPositions
from broker.streams.followers import Followers
from broker.streams.header_state import HeaderState, MessageIds, MessageLifetimes, read_header_state, stored_messages
from broker.streams.headers import size_line, with_lines
from broker.streams.requests import dumps
from broker.streams.subject_mapping import SubjectMapping
from stantools.nats import frames as tables
from stantools.nats.subjects import is_literal, valid_pattern
from stantools.streamfiles.headers import located
from stantools.streamfiles.layout import MAX_RECORD_SIZE, MAX_SUBJECT_SIZE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from broker.stores.streams.interface import StreamStore
    from broker.stores.streams.subject_filter import SubjectFilter, SubjectRows
    from broker.streams.configuration import StreamConfig
    from broker.streams.copy_positions import CopySource
    from broker.streams.quota import StorageQuota
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames

#: messages deleted one by one, and messages deleted in one step
_SMALL_STEP: Final = 16
_STEP: Final = 512
_MAX_SEQUENCE: Final = (1 << 62) - 1


class Stream:
    """The messages of a stream, its limits, and its followers. The configuration must be valid.

    `created` is in nanoseconds since 1970. If the store is `borrowed`, only another component changes its messages.
    """

    def __init__(
        self, quota: StorageQuota, config: StreamConfig, created: int, store: StreamStore, *, borrowed: bool = False
    ) -> None:
        self.quota, self.created, self.store = quota, created, store
        self.borrowed = borrowed
        self.json_name = dumps(config.name)  #: name as JSON
        self.label = config.name.encode()  #: name in headers
        self.failure = ""  #: why nothing can be stored; empty without a failure
        self.rolling_up: Iterator[None] | None = None  #: deletes the remaining messages that the last message replaces
        self.deleted = False  #: whether interrupted work must end
        self.counted_bytes = 0  #: bytes counted in `quota`
        self._ids = MessageIds()
        self._lifetimes = MessageLifetimes()
        self._untrimmed = b""  # subject of a message published with limits not yet enforced; empty for none
        self.followers = Followers()
        self.copy_positions = CopyPositions(store.contents.last + 1)
        self.unflushed = False  #: whether messages were deleted since the last flush
        # Bytes of a record besides subject and payload; with headers, additional bytes.
        self._record_overhead = store.size_of(b"", b"", b"")
        self._header_overhead = store.size_of(b"", b"x", b"") - self._record_overhead - 1
        #: messages to republish after the flush: subject, header block, payload
        self.republished: list[tuple[bytes, bytes, bytes]] = []
        self.configure(config)
        self.count()

    @property
    def name(self) -> str:
        return self.config.name

    def configure(self, config: StreamConfig) -> None:
        """Applies a valid configuration."""
        self.config = config
        transform, again = config.subject_transform, config.republish
        self._mapping = SubjectMapping(transform["src"], transform["dest"]) if transform else None
        self._republish_mapping = SubjectMapping(again["src"], again["dest"]) if again and again["dest"] else None
        most = config.max_msgs_per_subject
        self._limited = max(config.max_msgs, config.max_bytes, most) > 0
        # Whether each message needs checks of its own.
        self._needs_single_publish = (
            config.sealed
            or self._mapping is not None
            or self._republish_mapping is not None
            or config.retention == "interest"
            or (most > 0 and (max(config.max_msgs, config.max_bytes) > 0 or config.discard_new_per_subject))
        )

    def publish(
        self, subject: bytes, header: bytes, payload: bytes, now: int, *, defer_limits: bool = False
    ) -> tuple[int, bool]:
        """Stores a message.

        With `defer_limits`, the limits may be exceeded until `trim` is called. `now` is in nanoseconds since 1970.
        Returns the sequence, and whether the message is a duplicate; raises `RequestError` if it is refused.
        """
        config = self.config
        if self.failure:
            raise store_failed(self.failure)
        subject = self.admit(subject, header, payload)
        parsed = publish_headers.PLAIN
        if header and (headers := publish_headers.parse_nats_headers(header)):
            publish_headers.check(headers, config, subject, self.store.contents)
            message_id = headers.get(publish_headers.MESSAGE_ID, b"")
            if message_id and (sequence := self._ids.find(message_id, now - config.duplicate_window)):
                return sequence, True
            publish_headers.check_last_id(headers, self._ids.last)
            replaces = publish_headers.rollup(headers, allowed=config.allow_rollup_hdrs)
            parsed = publish_headers.PublishHeaders(message_id, self._lifetime(headers, subject), replaces)
        return self.append(subject, header, payload, now, parsed, defer_limits=defer_limits), False

    def publish_rows(self, buffer: Buffer, frames: Frames, begin: int, end: int, now: int) -> int:
        """Stores the messages of rows together, if no message needs checks of its own.

        Returns the sequence of the first one; 0 if none is stored and they must be published one by one. Raises
        `StorageError` if they cannot be written.
        """
        if self.failure or self._needs_single_publish:
            return 0
        config, store = self.config, self.store
        contents = store.contents
        most = config.max_msgs_per_subject
        headers, payloads, subjects, largest, longest = measure_rows(frames, begin, end)
        ids = self._new_ids(buffer, frames, begin, end, now) if headers else []
        if ids is None:
            return 0
        more, headed = self._record_overhead, self._header_overhead
        size = payloads + subjects + (end - begin) * more + headers * headed
        if (
            largest + longest + more + headed > MAX_RECORD_SIZE
            or longest > MAX_SUBJECT_SIZE
            or contents.last >= _MAX_SEQUENCE - (end - begin)
            or 0 <= config.max_msg_size < largest
            or not self.quota.has(config.storage, size)
        ):
            return 0
        if config.discard == "new" and (
            0 < config.max_msgs < contents.messages + end - begin or 0 < config.max_bytes < contents.bytes + size
        ):
            return 0
        if most > 0 and self.copy_positions.marks:
            self.copy_positions.save(self.store)
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
        """Returns the ids of messages, empty where there is none; None if one is a duplicate or has other headers."""
        found: list[bytes] = []
        oldest = now - self.config.duplicate_window
        for _, _, header, _ in tables.rows(buffer, frames, begin, end):
            headers = publish_headers.parse_nats_headers(header) if header else publish_headers.NOTHING
            if len(header) > publish_headers.MOST_HEADERS or len(headers) > (publish_headers.MESSAGE_ID in headers):
                return None
            found.append(headers.get(publish_headers.MESSAGE_ID, b""))
            if found[-1] and self._ids.find(found[-1], oldest):
                return None
        named = [each for each in found if each]
        return found if len(set(named)) == len(named) else None

    def admit(self, subject: bytes, header: bytes, payload: bytes) -> bytes:
        """Returns the mapped subject of a new message; raises `RequestError` if the message is refused."""
        if self.config.sealed:
            raise sealed()
        if 0 <= self.config.max_msg_size < len(header) + len(payload):
            raise RequestError(400, TOO_LARGE, "message size exceeds maximum allowed")
        return subject if self._mapping is None else self._mapping.of(subject) or subject

    def find_duplicate(self, message_id: bytes, time: int) -> int:
        """Returns the sequence of the message with this id in the duplicate window that ends at `time`; 0 for none."""
        return self._ids.find(message_id, time - self.config.duplicate_window)

    def append(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        now: int,
        parsed: publish_headers.PublishHeaders,
        sequence: int = 0,
        *,
        source: CopySource | None = None,
        defer_limits: bool = False,
    ) -> int:
        """Stores a message if the limits allow it. Returns its sequence: the given one, or the next."""
        config, store = self.config, self.store
        size = store.size_of(subject, header, payload)
        if size > MAX_RECORD_SIZE or len(subject) > MAX_SUBJECT_SIZE or store.contents.last >= _MAX_SEQUENCE:
            raise store_failed("message is too large to be stored")
        if len(header) > publish_headers.MOST_HEADERS:
            raise RequestError(400, 10097, "header size exceeds maximum allowed of 64k")
        self.quota.check(config.storage, size)
        if config.discard == "new":
            full = self._exceeded_limit(subject, size, replaces=bool(parsed.replaces))
            if full and not self._is_unwanted(subject):
                raise store_failed(full)
        if sequence:
            store.skip(sequence)
        again = self._republish_mapping.of(subject) if self._republish_mapping is not None else None
        if again == subject:
            # The mapped subject is invalid, and republished to its own subject the message would return here.
            again = None
        last = store.contents.last_of(subject) if again else 0
        sequence = store.append(now, subject, header, payload)
        if again:
            self._republish(again, Stored(sequence, now, subject, header, payload), last)
        if header or self._ids.last:
            self._ids.note(parsed.message_id, sequence, now)
        if parsed.life:
            self._lifetimes.note(sequence, now, parsed.life)
        wanted = config.retention != "interest" or self.followers.need(store.contents, sequence)
        if source is not None:
            # Enforcing limits may delete the copy that shows this source's position. The new copy shows it now.
            self.copy_positions.end = sequence + 1
            source.stored(sequence, stays=wanted)
        if not wanted:
            # No other message is deleted for it.
            self.remove(sequence)
            self.count()
        elif defer_limits and config.retention == "limits" and not parsed.replaces:
            self._untrimmed = subject
        else:
            self.enforce(subject)
        if parsed.replaces:
            self._roll_up(parsed.replaces, subject, sequence)
            self.count()
        return sequence

    def _is_unwanted(self, subject: bytes) -> bool:
        """Returns whether messages with this subject are not kept, because no consumer receives them."""
        return self.config.retention == "interest" and not self.followers.want(subject)

    def _lifetime(self, headers: Mapping[bytes, bytes], subject: bytes) -> int:
        """Returns the lifetime of a message. An invalid one matters only for messages that are kept."""
        try:
            return publish_headers.lifetime(headers)
        except RequestError:
            if self._is_unwanted(subject):
                return 0
            raise

    def _republish(self, to: bytes, message: Stored, last: int) -> None:
        """Schedules a republished message, with the sequence of the previous one with the same subject."""
        sequence, time, subject, header, payload = message
        lines = [b"Nats-Last-Sequence: %d" % last]
        if self.config.republish and self.config.republish.get("headers_only"):
            lines.append(size_line(payload))
            payload = b""
        block = located(header, self.label, subject, sequence, time)
        self.republished.append((to, with_lines(block, *lines), payload))

    def reload_header_state(self, now: int) -> None:
        """Reads again the state that the headers of stored messages contain."""
        self.set_header_state(read_header_state(self.store, self.config, now))

    def set_header_state(self, found: HeaderState) -> None:
        self._ids, self._lifetimes = found

    def _exceeded_limit(self, subject: bytes, size: int, *, replaces: bool) -> str:
        """Returns which limit a message exceeds in a stream that refuses new ones; empty for none."""
        config, contents = self.config, self.store.contents
        too_large = 0 < config.max_bytes < contents.bytes + size
        if config.max_msgs_per_subject > 0:
            entry = contents.subjects.get(subject)
            if entry is not None and entry.count >= config.max_msgs_per_subject:
                if config.discard_new_per_subject and not replaces:
                    return "maximum messages per subject exceeded"
                # The oldest message of the subject is replaced.
                found = contents.locate(contents.first_of(entry))
                return "maximum bytes exceeded" if too_large and found and found[0].sizes[found[1]] < size else ""
        if 0 < config.max_msgs <= contents.messages:
            return "maximum messages exceeded"
        return "maximum bytes exceeded" if too_large else ""

    def _roll_up(self, what: str, subject: bytes, sequence: int) -> None:
        """Deletes the messages that a message replaces: a few at once, the rest by `rolling_up`."""
        contents = self.store.contents
        if what == "sub" and is_literal(subject):
            entry = contents.subjects.get(subject)
            if entry is not None and entry.count <= _SMALL_STEP:
                while entry.count > 1:
                    self.remove(contents.first_of(entry))
                self.followers.purged(contents, subject)
                return
        wanted = contents.filter((subject,)) if what == "sub" else None
        work = self._roll_up_all(wanted, subject if what == "sub" else b"", sequence)
        if next(work, self) is not self:
            self.rolling_up = work

    def _roll_up_all(self, wanted: SubjectFilter | None, pattern: bytes, sequence: int) -> Iterator[None]:
        contents = self.store.contents
        try:
            yield from self._purge_below(wanted, sequence)
            self.followers.purged(self.store.contents, pattern)
        finally:
            contents.release(wanted)

    def rest_of_roll_up(self) -> Iterator[None]:
        """Returns work in steps that deletes the remaining messages that the last one replaces."""
        work, self.rolling_up = self.rolling_up, None
        return work or iter(())

    def trim(self) -> None:
        """Enforces the limits after a message published with `defer_limits`."""
        subject, self._untrimmed = self._untrimmed, b""
        if subject:
            self.enforce(subject)

    def enforce(self, subject: bytes = b"") -> None:
        """Deletes messages over the limits. Only messages with `subject` were added; empty for any."""
        if not self._limited:
            self.count()
            return
        contents, most = self.store.contents, self.config.max_msgs_per_subject
        if most > 0:
            one = contents.subjects.get(subject) if subject else None
            for entry in list(contents.subjects.values()) if not subject else () if one is None else (one,):
                while entry.count > most:
                    self.remove(contents.first_of(entry))
        self._enforce_totals()
        self.count()

    def _enforce_totals(self) -> None:
        config, store = self.config, self.store
        contents = store.contents
        # A stream that refuses new messages keeps its messages, even after its limits were lowered.
        if config.discard == "old" and (
            0 < config.max_msgs < contents.messages or 0 < config.max_bytes < contents.bytes
        ):
            sequence, messages, size = contents.first, contents.messages, contents.bytes
            while messages and (0 < config.max_msgs < messages or 0 < config.max_bytes < size):
                found = contents.locate(sequence)
                if found is not None:
                    messages, size = messages - 1, size - found[0].sizes[found[1]]
                sequence += 1
            if sequence - contents.first <= _SMALL_STEP:
                while contents.first < sequence and contents.messages:
                    self.remove(contents.first)
            else:
                self.copy_positions.save_below(self.store, sequence)
                store.purge_below(sequence)
                self.followers.shrunk(sequence)

    def enforce_all(self) -> Iterator[None]:
        """Deletes messages over the limits after a change of configuration, in steps."""
        contents, most = self.store.contents, self.config.max_msgs_per_subject
        self._enforce_totals()
        steps = 0
        for entry in list(contents.subjects.values()) if most > 0 else ():
            while entry.count > most:
                self.remove(contents.first_of(entry))
                steps += 1
                if steps % _SMALL_STEP == 0:
                    yield
            steps += 1
            if steps % _STEP == 0:
                yield
            if self.deleted or contents is not self.store.contents:
                return
        self.enforce()

    def expire(self, now: int) -> bool:
        """Deletes expired messages and forgets ids older than the duplicate window.

        Returns whether more may be expired: one call deletes a limited number.
        """
        more = False
        contents, config = self.store.contents, self.config
        self._ids.forget(now - config.duplicate_window)
        gone: list[bytes] = []
        for count, sequence in enumerate(islice(self._lifetimes.ended(now), _STEP), 1):
            more = count == _STEP
            message = self.store.read(sequence)
            if message is not None:
                if not publish_headers.is_marker(message.header):
                    gone.append(message.subject)
                self.remove(sequence)
        if config.max_age and contents.messages and contents.first_time <= now - config.max_age:
            end = contents.first_since(now - config.max_age + 1)
            some = [] if self._lifetimes.forever else contents.matching(None, contents.first, _STEP)
            if some and some[-1] + 1 < end:
                end, more = some[-1] + 1, True
            if config.subject_delete_marker_ttl:
                # The expired messages show which subjects may end.
                there = filter(None, map(contents.locate, some))
                names = dict.fromkeys(contents.subject_at(*place) for place in there) if some else contents.subjects
                gone += [name for name in names if self._ends_unmarked(contents.subjects[name], end)]
            self.copy_positions.save_below(self.store, end)
            if self._lifetimes.forever:
                self._expire_others(end)
            else:
                self.store.purge_below(end)
            self.followers.shrunk(end)
        life = config.subject_delete_marker_ttl
        for subject in dict.fromkeys(gone) if life else ():
            if subject not in contents.subjects:
                self._lifetimes.note(self.store.append(now, subject, publish_headers.marker(life), b""), now, life)
        self.count()
        return more

    def _ends_unmarked(self, entry: SubjectRows, end: int) -> bool:
        """Returns whether all messages of a subject are below a sequence, and the last one is no delete marker."""
        message = self.store.read(entry.last) if entry.last < end else None
        return message is not None and not publish_headers.is_marker(message.header)

    def _expire_others(self, end: int) -> None:
        """Deletes the messages below a sequence, except messages that never expire."""
        kept = self._lifetimes.forever = {
            each for each in self._lifetimes.forever if self.store.contents.locate(each) is not None
        }
        for message in stored_messages(self.store, self.store.contents.first):
            if message.sequence >= end:
                break
            if message.sequence not in kept:
                self.store.remove(message.sequence)

    @property
    def may_expire(self) -> bool:
        """Whether messages, ids or lifetimes expire with time."""
        return (
            bool(self._ids) or bool(self._lifetimes) or (self.config.max_age > 0 and self.store.contents.messages > 0)
        )

    def count(self) -> None:
        """Updates the bytes counted in `quota`; a borrowed stream counts none."""
        if self.borrowed:
            return
        used = self.store.contents.bytes
        self.quota.used[self.config.storage] += used - self.counted_bytes
        self.counted_bytes = used

    def flush(self) -> None:
        """Writes all changes to the files, and follows deletions by the owner of a borrowed store."""
        first = self.store.contents.first
        self.store.flush()
        self.unflushed = False
        if self.store.contents.first != first:
            self.followers.shrunk(self.store.contents.first)

    # Deletion

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        """Deletes a message, and returns whether it existed; `erase` overwrites it."""
        if sequence in self.copy_positions.marks:
            self.copy_positions.save(self.store)
        found = self.store.contents.locate(sequence)
        if found is None:
            return False
        # The subject may be removed with its last message, so the followers come first.
        number = found[0].subjects[found[1]]
        for follower in self.followers:
            follower.removed(sequence, number)
        self.unflushed = True
        return self.store.remove(sequence, erase=erase)

    def close(self) -> None:
        """Stores the positions of the sources and closes the files."""
        if not self.failure:
            self.store.flush()
            # So the next start reads no message to find these positions.
            self.copy_positions.end = self.store.contents.last + 1
            self.copy_positions.save(self.store)
        self.store.close()

    def done(self, sequences: Sequence[int]) -> bool:
        """Deletes messages that a follower has processed, if the retention says so. Returns whether one was deleted."""
        if self.config.retention == "limits":
            return False
        gone = [
            each
            for each in sequences
            if self.config.retention == "workqueue" or not self.followers.need(self.store.contents, each)
        ]
        went = [self.remove(each) for each in gone]
        self.count()
        return any(went)

    def remove_unneeded(self, sequence: int = 0, *, delivered: bool = False) -> Iterator[None]:
        """Deletes messages that no follower needs, from a sequence on, in steps, if the retention allows it.

        With `delivered` only those that were delivered to a follower. Other messages may be for a consumer in memory,
        which a restart removes: real servers keep them then.
        """
        if delivered:
            return self._remove_unneeded(sequence, self.followers.last_delivered, Followers(self.followers))
        return self._remove_unneeded(sequence, self.store.contents.last, None)

    def _remove_unneeded(self, sequence: int, last: int, delivered: Followers | None) -> Iterator[None]:
        while self.config.retention == "interest" and not self.deleted:
            found = [each for each in self.store.contents.matching(None, sequence, _SMALL_STEP) if each <= last]
            if not found:
                break
            if delivered is not None:
                delivered = Followers(each for each in delivered if each in self.followers)
            for each in found:
                if delivered is not None and not delivered.were_given(self.store.contents, each):
                    continue
                if not self.followers.need(self.store.contents, each):
                    self.remove(each)
            sequence = found[-1] + 1
            self.count()
            yield

    def purge(self, patterns: tuple[()] | tuple[bytes], below: int, keep: int) -> Generator[None, None, int]:
        """Deletes messages in steps, and returns their number. Messages stored meanwhile stay.

        The messages must match the pattern, if there is one, and be `below` a sequence, if that is not 0; the last
        `keep` of them stay. Raises `RequestError` if the configuration does not permit it.
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
                below = self._first_kept(wanted, keep)
                if below <= contents.first:
                    self.followers.purged(self.store.contents, b"".join(patterns))
                    return 0
            if wanted is None and (not below or below > contents.last):
                before = contents.messages
                if self.copy_positions.marks:
                    self.copy_positions.save(self.store)
                self.store.purge_all(min(max(below, contents.last + 1), _MAX_SEQUENCE))
                self.followers.shrunk(contents.first)
                self.count()
            else:
                before = yield from self._purge_below(wanted, below or end)
            self.followers.purged(self.store.contents, b"".join(patterns))
            return before
        finally:
            contents.release(wanted)

    def _purge_below(self, wanted: SubjectFilter | None, below: int) -> Generator[None, None, int]:
        """Deletes matching messages below a sequence, in steps. Returns their number."""
        contents = self.store.contents
        gone, start = 0, contents.first
        try:
            while found := contents.matching(wanted, start, _STEP):
                start = found[-1] + 1
                before, part = contents.messages, min(start, below)
                self.copy_positions.save_below(self.store, part)
                if wanted is None:
                    self.store.purge_below(part)
                else:
                    self.store.purge_matching(wanted, part)
                gone += before - contents.messages
                if start >= below:
                    break
                yield
                self.check_not_deleted()
                if contents is not self.store.contents:
                    raise store_failed("the stream was opened again meanwhile")
        finally:
            self.followers.shrunk(min(start, below))
            self.count()
            self.unflushed = True
        return gone

    def _first_kept(self, wanted: Any, keep: int) -> int:
        """Returns the sequence below which matching messages are deleted if the last `keep` of them stay."""
        for segment, rows in reversed(list(self.store.contents.rows(wanted))):
            if len(rows) >= keep:
                return int(rows[-keep]) + segment.first
            keep -= len(rows)
        return 0

    def delete_message(self, sequence: int, *, erase: bool) -> None:
        """Deletes a message; raises `RequestError` if it does not exist, or the configuration does not permit it."""
        if self.config.sealed:
            raise sealed()
        if self.config.deny_delete:
            raise RequestError(500, 10057, "message delete not permitted")
        contents = self.store.contents
        if sequence < contents.first and self.config.storage == "file":
            raise RequestError(500, 10057, "no message found")
        if sequence > contents.last and self.config.storage == "file":
            raise RequestError(500, 10057, "stream store EOF")
        if not self.remove(sequence, erase=erase):
            raise RequestError(400, 10043, f"sequence {sequence} not found")
        self.count()

    def check_not_deleted(self) -> None:
        """Raises `RequestError` if the stream was deleted after some work began."""
        if self.deleted:
            raise stream_not_found()

    def message(self, sequence: int) -> Stored:
        """Returns a message; raises `RequestError` if it does not exist."""
        found = self.store.read(sequence)
        if found is None:
            raise no_message()
        return found
