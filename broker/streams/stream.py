"""A stream: it stores published messages, one or many with the same rules, and deletes messages that no consumer needs.

Facts: jetstream-server.md sections 5 to 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.stores.streams.interface import Stored
from broker.stores.streams.kernels import measure_rows
from broker.streams import publish_headers, stream_limits
from broker.streams.api_errors import TOO_LARGE, RequestError, no_message, sealed, store_failed, stream_not_found
from broker.streams.copy_positions import CopyPositions
from broker.streams.followers import Followers
from broker.streams.header_state import HeaderState, MessageIds, MessageLifetimes, read_header_state
from broker.streams.headers import size_line, with_lines
from broker.streams.purge import roll_up
from broker.streams.requests import dumps
from broker.streams.subject_mapping import SubjectMapping
from stantools.nats import frames as tables
from stantools.streamfiles.headers import located

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from broker.stores.streams.interface import StreamStore
    from broker.stores.streams.subject_filter import SubjectRows
    from broker.streams.configuration import StreamConfig
    from broker.streams.copy_positions import CopySource
    from broker.streams.quota import StorageQuota
    from stantools.format.envelope import Buffer
    from stantools.nats.frames import Frames


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
        self.message_ids = MessageIds()
        self.lifetimes = MessageLifetimes()
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
        self.limited = max(config.max_msgs, config.max_bytes, most) > 0  #: whether limits may delete messages
        # Whether each message needs checks of its own: `publish_rows` refuses them all.
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
        subject = self.admit(subject, len(header) + len(payload))
        parsed = publish_headers.PLAIN
        if header and (headers := publish_headers.parse_nats_headers(header)):
            publish_headers.check(headers, config, subject, self.store.contents)
            message_id = headers.get(publish_headers.MESSAGE_ID, b"")
            if message_id and (sequence := self.find_duplicate(message_id, now)):
                return sequence, True
            publish_headers.check_last_id(headers, self.message_ids.last)
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
        count, store = end - begin, self.store
        headers, payloads, subjects, largest, longest = measure_rows(frames, begin, end)
        overhead, header_overhead = self._record_overhead, self._header_overhead
        size = payloads + subjects + count * overhead + headers * header_overhead
        ids: list[bytes] = []
        header_size = 0
        for _, _, header, _ in tables.rows(buffer, frames, begin, end) if headers else ():
            parsed = publish_headers.parse_nats_headers(header) if header else publish_headers.NOTHING
            if len(parsed) > (publish_headers.MESSAGE_ID in parsed):
                return 0
            ids.append(parsed.get(publish_headers.MESSAGE_ID, b""))
            header_size = max(header_size, len(header))
        named = [each for each in ids if each]
        if len(set(named)) < len(named) or any(self.find_duplicate(each, now) for each in named):
            return 0
        try:
            self.admit(b"", largest)
            stream_limits.check(self, count, size, largest + longest + overhead + header_overhead, longest, header_size)
        except RequestError:
            return 0
        sequence = store.contents.last + 1
        over = store.append_rows(now, buffer, frames, begin, end, max(self.config.max_msgs_per_subject, 0))
        self._stored(sequence, ids, now, over)
        return sequence

    def _stored(self, sequence: int, ids: Sequence[bytes], now: int, over: list[SubjectRows] | None) -> None:
        """Completes the storage of messages: their ids, if one has headers, limits, and used bytes.

        The subjects `over` have too many messages; None defers the limits.
        """
        if ids or self.message_ids.last:
            self.message_ids.note(ids, sequence, now)
        if self.limited and over is not None:
            stream_limits.enforce(self, over)
        self.count()

    def admit(self, subject: bytes, size: int) -> bytes:
        """Returns the mapped subject of a new message; raises `RequestError` if the message is refused.

        `size` is the bytes of headers and payload.
        """
        if self.config.sealed:
            raise sealed()
        if 0 <= self.config.max_msg_size < size:
            raise RequestError(400, TOO_LARGE, "message size exceeds maximum allowed")
        return subject if self._mapping is None else self._mapping.of(subject) or subject

    def find_duplicate(self, message_id: bytes, time: int) -> int:
        """Returns the sequence of the message with this id in the duplicate window that ends at `time`; 0 for none."""
        return self.message_ids.find(message_id, time - self.config.duplicate_window)

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
        if parsed.life:
            header, parsed = publish_headers.outliving_marker(header, parsed, config)
        size = store.size_of(subject, header, payload)
        replaces = parsed.replaces
        stream_limits.check(self, 1, size, size, len(subject), len(header), subject, replaces=bool(replaces))
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
        if parsed.life:
            self.lifetimes.note(sequence, now, parsed.life)
        wanted = config.retention != "interest" or self.followers.need(store.contents, sequence)
        if source is not None:
            # Enforcing limits may delete the copy that shows this source's position. The new copy shows it now.
            self.copy_positions.end = sequence + 1
            source.stored(sequence, stays=wanted)
        if not wanted:
            # No other message is deleted for it.
            self.remove(sequence)
        ids = (parsed.message_id,) if header else ()
        if defer_limits and config.retention == "limits" and not replaces:
            self._untrimmed = subject
            self._stored(sequence, ids, now, None)
        else:
            self._stored(sequence, ids, now, self._over(subject) if self.limited else [])
        if replaces:
            roll_up(self, replaces, subject, sequence)
            self.count()
        return sequence

    def is_unwanted(self, subject: bytes) -> bool:
        """Returns whether messages with this subject are not kept, because no consumer receives them."""
        return self.config.retention == "interest" and not self.followers.want(subject)

    def _lifetime(self, headers: Mapping[bytes, bytes], subject: bytes) -> int:
        """Returns the lifetime of a message. An invalid one matters only for messages that are kept."""
        try:
            return publish_headers.lifetime(headers)
        except RequestError:
            if self.is_unwanted(subject):
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
        self.message_ids, self.lifetimes = found

    def rest_of_roll_up(self) -> Iterator[None]:
        """Returns work in steps that deletes the remaining messages that the last one replaces."""
        work, self.rolling_up = self.rolling_up, None
        return work or iter(())

    def trim(self) -> None:
        """Enforces the limits after a message published with `defer_limits`."""
        subject, self._untrimmed = self._untrimmed, b""
        if subject and self.limited:
            stream_limits.enforce(self, self._over(subject))
            self.count()

    def _over(self, subject: bytes) -> list[SubjectRows]:
        """Returns the entry of a subject if it has too many messages."""
        entry = self.store.contents.subjects.get(subject) if self.config.max_msgs_per_subject > 0 else None
        return [] if entry is None else stream_limits.over(self, (entry,))

    @property
    def may_expire(self) -> bool:
        """Whether messages, ids or lifetimes expire with time."""
        return (
            bool(self.message_ids)
            or bool(self.lifetimes)
            or (self.config.max_age > 0 and self.store.contents.messages > 0)
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

        With `delivered` only messages delivered to a follower. Other messages may be for a consumer in memory,
        which a restart removes: real servers keep them then.
        """
        if delivered:
            return self._remove_unneeded(sequence, self.followers.last_delivered, Followers(self.followers))
        return self._remove_unneeded(sequence, self.store.contents.last, None)

    def _remove_unneeded(self, sequence: int, last: int, delivered: Followers | None) -> Iterator[None]:
        while self.config.retention == "interest" and not self.deleted:
            found = [
                each for each in self.store.contents.matching(None, sequence, stream_limits.SMALL_STEP) if each <= last
            ]
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
