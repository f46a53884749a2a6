"""Subjects of streams: which overlap, and which a server refuses."""

from __future__ import annotations

_ANY, _REST = "*", ">"
#: From this version on a server reserves everything under these for itself (jetstream-migration.md section 10).
_RESERVED_SINCE = (2, 10, 0)
_RESERVED = ("$JS.>", "$JSC.>", "$SYS.>")
_RESERVED_BEFORE = ("$JS.API.>",)


def overlap(one: str, other: str) -> bool:
    """Tells whether there can be a subject that both patterns match."""
    left, right = one.split("."), other.split(".")
    for mine, its in zip(left, right, strict=False):
        if _REST in (mine, its):
            return True
        if mine != its and _ANY not in (mine, its):
            return False
    return len(left) == len(right)


def refused(subject: str, version: tuple[int, int, int]) -> str | None:
    """Returns why a server refuses a subject for a stream, None if it does not.

    Args:
        subject: Subject or pattern.
        version: The server's version; zeros for one that is not known, which is taken for a new one.
    """
    tokens = subject.split(".")
    if not all(tokens) or any(character.isspace() for character in subject):
        return "is no subject"
    new = version == (0, 0, 0) or version >= _RESERVED_SINCE
    if new and subject == _REST:
        return "takes in all there is, which needs no_ack"
    for reserved in _RESERVED if new else _RESERVED_BEFORE:
        if overlap(subject, reserved):
            return f"lies under {reserved}, which the server keeps for itself"
    return None
