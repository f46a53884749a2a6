"""Subjects of streams: which overlap, and which a server refuses."""

from __future__ import annotations

_ANY, _REST = "*", ">"
#: What a server keeps for itself (jetstream-migration.md section 10), from which version on.
_RESERVED = (("$JS.API", (0, 0, 0)), ("$JS", (2, 10, 0)), ("$JSC", (2, 10, 0)), ("$SYS", (2, 10, 0)))
#: Before, a pattern that only takes in some of it was let through.
_PATTERNS_REFUSED_SINCE = (2, 11, 0)
_NEWEST = (1 << 30, 0, 0)


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
    if version == (0, 0, 0):
        version = _NEWEST
    if subject == _REST:
        # Servers before 2.10 let it through; the stream then takes in requests and answers of the API as well.
        return "takes in all there is, the server's own requests and answers as well"
    for prefix, since in _RESERVED:
        inside = subject.startswith(f"{prefix}.")
        touches = version >= _PATTERNS_REFUSED_SINCE and overlap(subject, f"{prefix}.{_REST}")
        if version >= since and (inside or touches):
            return f"lies under {prefix}.{_REST}, which the server keeps for itself"
    return None
