"""What a user may publish and subscribe to (server-operations.md section 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stantools.nats import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.nats.options import Permissions, ResponsePermission, SubjectPermission

#: How many subjects a permit remembers, and how long (bytes) they may be.
_REMEMBERED: Final = 4096
_LONGEST: Final = 256


class _Rules:
    """Allowed and denied subjects. Subscribe rules can hold for one queue group only."""

    def __init__(self, permission: SubjectPermission, with_queues: bool) -> None:
        allow = None if permission.allow is None else [_split(rule, with_queues) for rule in permission.allow]
        self.allow: list[tuple[bytes, bytes]] | None = allow
        self.deny = [_split(rule, with_queues) for rule in permission.deny]

    def permit(self, subject: bytes, queue: bytes = b"") -> bool:
        # A pattern that is subscribed to is looked up as if it were a subject: what it could match beyond is
        # checked when messages are delivered.
        if self.allow is not None and not _applies(self.allow, subject, queue):
            return False
        return not _applies(self.deny, subject, queue)


def _split(rule: bytes, with_queues: bool) -> tuple[bytes, bytes]:
    words = rule.split()
    if with_queues and len(words) == 2:
        return words[0], words[1]
    return rule.strip(), b""


def _applies(rules: Iterable[tuple[bytes, bytes]], subject: bytes, queue: bytes) -> bool:
    for pattern, wanted in rules:
        if wanted and (not queue or not subjects.matches(wanted, queue)):
            continue
        if subjects.matches(pattern, subject):
            return True
    return False


class Permit:
    """What one user may do. Shared by all of its connections.

    Attributes:
        responses: What may be published to reply subjects of messages received; None for nothing in particular.
    """

    def __init__(self, permissions: Permissions) -> None:
        publish = permissions.publish
        self.responses: ResponsePermission | None = permissions.responses
        self._publish = _Rules(publish, with_queues=False)
        if permissions.responses is not None and publish.allow is None:
            # Nothing but answers may be published.
            self._publish.allow = []
        self._subscribe = _Rules(permissions.subscribe, with_queues=True)
        self._remembered: dict[bytes, bool] = {}

    def may_publish(self, subject: bytes) -> bool:
        """Returns whether messages may be published to a subject, answers apart."""
        known = self._remembered.get(subject)
        if known is None:
            known = self._publish.permit(subject)
            if len(subject) <= _LONGEST:
                if len(self._remembered) >= _REMEMBERED:
                    self._remembered.clear()
                self._remembered[subject] = known
        return known

    def may_subscribe(self, pattern: bytes, queue: bytes = b"") -> bool:
        """Returns whether a subscription is allowed."""
        return self._subscribe.permit(pattern, queue)

    def narrows(self, pattern: bytes) -> bool:
        """Returns whether an allowed pattern also matches subjects that are denied."""
        if subjects.is_literal(pattern):
            return False
        return any(not queue and subjects.overlap(denied, pattern) for denied, queue in self._subscribe.deny)

    def may_receive(self, subject: bytes) -> bool:
        """Returns whether a message that an allowed pattern matches may be delivered."""
        return not _applies(self._subscribe.deny, subject, b"")
