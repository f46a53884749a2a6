"""Subjects and patterns of NATS: tokens with dots between them, `*` for one token, `>` for all that follow."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, AnyStr, Final

#: No token is empty or has white space. A `*` or `>` among other characters of a token has no meaning.
_TOKEN: Final = rb"[^. \t\n\r\f]+"
_LITERAL: Final = rb"(?![*>](?:\.|\Z))" + _TOKEN
_SUBJECT: Final = re.compile(_LITERAL + rb"(?:\." + _LITERAL + rb")*\Z")
#: characters that end a protocol line or a token, and unreadable ones
_INVALID: Final = re.compile(rb"[\x00-\x20\x7f]")
_NOT_REST: Final = rb"(?!>(?:\.|\Z))" + _TOKEN
_PATTERN: Final = re.compile(rb"(?:" + _NOT_REST + rb"\.)*" + _TOKEN + rb"\Z")


def valid_subject(subject: bytes) -> bool:
    """Returns whether messages can be published to it: no wildcards, no empty token, no white space."""
    return _SUBJECT.match(subject) is not None


def subject_problem(subject: bytes) -> str:
    """Returns why messages cannot be published to a subject, "" if they can: the predicate of its name."""
    tokens = subject.split(b".")
    if not subject or b"" in tokens:
        return "has an empty token, which no subject may have"
    if _INVALID.search(subject):
        return "has a blank or a control character, which no subject may have"
    if b"*" in tokens or b">" in tokens:
        return "has a wildcard: messages cannot be published there"
    try:
        subject.decode()
    except UnicodeDecodeError:
        return "is not UTF-8, as subjects must be"
    return ""


def valid_pattern(pattern: bytes) -> bool:
    """Returns whether it is a valid pattern: a subject, also with `*` for tokens and `>` as the last token."""
    return _PATTERN.match(pattern) is not None


def is_literal(pattern: bytes) -> bool:
    if b"*" not in pattern and b">" not in pattern:
        return True
    tokens = pattern.split(b".")
    return b"*" not in tokens and tokens[-1] != b">"


def matches(pattern: bytes, subject: bytes) -> bool:
    """Returns whether a subscription to the pattern gets messages of the subject."""
    if is_literal(pattern):
        return pattern == subject
    wanted, tokens = pattern.split(b"."), subject.split(b".")
    if wanted[-1] == b">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(wanted) != len(tokens):
        return False
    # with ">" the tokens that it matches are left over
    return all(want in (b"*", token) for want, token in zip(wanted, tokens, strict=False))


def matches_any(patterns: Collection[bytes], subject: bytes) -> bool:
    """Returns whether a filter of patterns lets a subject pass; without patterns every subject passes."""
    return not patterns or any(matches(pattern, subject) for pattern in patterns)


def overlap(one: AnyStr, other: AnyStr) -> bool:
    """Returns whether some subject matches both patterns."""
    dot, rest, any_token = _SYMBOLS[type(one)]
    mine, theirs = one.split(dot), other.split(dot)
    for a, b in zip(mine, theirs, strict=False):
        if rest in (a, b):
            return True
        if a != b and any_token not in (a, b):
            return False
    return len(mine) == len(theirs)


def covers(wide: bytes, narrow: bytes) -> bool:
    """Returns whether a pattern matches every subject that another one matches."""
    tokens = narrow.split(b".")
    wanted = wide.split(b".")
    for row, want in enumerate(wanted):
        if want == b">":
            return len(tokens) > row
        if row == len(tokens) or tokens[row] == b">" or want not in (b"*", tokens[row]):
            return False
    return len(wanted) == len(tokens)


class SubjectOwners:
    """Subjects and patterns with their owners. Without wildcards only equal ones overlap."""

    def __init__(self) -> None:
        self._literals: dict[str, tuple[str, str]] = {}
        self._patterns: list[tuple[str, str]] = []

    def add(self, subject: str, owner: str) -> list[tuple[str, str]]:
        """Adds a subject or a pattern; returns the earlier ones that overlap it, each with its owner."""
        others = [each for each in self._patterns if overlap(each[0], subject)]
        if "*" in subject or ">" in subject:
            others += [each for each in self._literals.values() if overlap(each[0], subject)]
            self._patterns.append((subject, owner))
        elif subject in self._literals:
            others.append(self._literals[subject])
        else:
            self._literals[subject] = subject, owner
        return others


#: separator of tokens, and the wildcards, in text and in bytes
_SYMBOLS: Final[dict[type, tuple[Any, Any, Any]]] = {str: (".", ">", "*"), bytes: (b".", b">", b"*")}
