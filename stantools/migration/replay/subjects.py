"""Subjects of replayed messages: rules that map a channel's name to a subject.

A rule is `PATTERN=SUBJECT`. The pattern is a channel name in which `*` matches one token and a last `>` one or more.
In the subject, each `*` is replaced by the match of the next `*` of the pattern, `$1`, `$2`, … by the match of that
`*`, and a last `>` by the match of the pattern's `>`:

    old.*=new.*             old.orders          -> new.orders
    shop.*.*=$2.of.$1       shop.eu.paid        -> paid.of.eu
    telemetry.>=lab.>       telemetry.a.b       -> lab.a.b
    orders=test             orders              -> test

The first matching rule counts; a channel without one keeps its name. A prefix is added to the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from stantools.errors import UsageError
from stantools.nats.subjects import subject_problem

_NUMBERED = re.compile(r"\$([1-9]\d*)")
#: messages on these subjects would be requests to the server itself
_RESERVED = (b"$JS.", b"$SYS.", b"$KV.", b"$O.", b"_STAN.")


def shown(name: bytes) -> str:
    """Returns a name as text; bytes that are not UTF-8 survive the reverse conversion."""
    return name.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class SubjectRule:
    pattern: tuple[str, ...]  #: tokens of the pattern
    subject: tuple[str | int, ...]  #: tokens of the subject: text, the index of a `*` from 0, or `>` for the rest

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `PATTERN=SUBJECT`, divided at the first equals sign."""
        left, equals, right = text.partition("=")
        if not equals or not left or not right:
            raise UsageError(f"{text!r} is not a rule for subjects", "write PATTERN=SUBJECT, such as 'old.*=new.*'")
        pattern = tuple(left.split("."))
        if ">" in pattern[:-1]:
            raise UsageError(f"{text!r}: > matches the rest of a name and can only be last")
        return cls(pattern, tuple(_subject_tokens(text, pattern, right.split("."))))

    def apply(self, channel: str) -> str | None:
        """Returns the subject of a channel, None if the rule does not match it."""
        tokens = channel.split(".")
        rest: list[str] | None = None
        pattern = self.pattern
        if pattern[-1] == ">":
            pattern = pattern[:-1]
            rest = tokens[len(pattern) :]
            tokens = tokens[: len(pattern)]
            if not rest:
                return None
        if len(tokens) != len(pattern):
            return None
        stars = []
        for token, wanted in zip(tokens, pattern, strict=True):
            if wanted == "*":
                stars.append(token)
            elif token != wanted:
                return None
        parts: list[str] = []
        for part in self.subject:
            if isinstance(part, int):
                parts.append(stars[part])
            elif part == ">":
                parts += rest or []
            else:
                parts.append(part)
        return ".".join(parts)


def _subject_tokens(text: str, pattern: tuple[str, ...], tokens: list[str]) -> Iterable[str | int]:
    """Replaces the wildcards of the right side by numbers; see `SubjectRule`."""
    stars = pattern.count("*")
    used = 0
    if "*" in tokens and any(_NUMBERED.fullmatch(token) for token in tokens):
        raise UsageError(f"{text!r} mixes * and $1 on its right side", "use one of them")
    for place, token in enumerate(tokens):
        if token == "":
            raise UsageError(f"{text!r}: the subject has an empty token", "write one dot between two tokens")
        if token == ">":
            if place != len(tokens) - 1 or pattern[-1] != ">":
                raise UsageError(f"{text!r}: > can only be last on the right side, and only if it is last on the left")
            yield token
        elif token == "*" or _NUMBERED.fullmatch(token):
            number = used if token == "*" else int(token[1:]) - 1
            used += 1
            if number >= stars:
                what = "more * than the left side" if token == "*" else f"{token}, and the left side has {stars} *"
                raise UsageError(f"{text!r}: the right side has {what}")
            yield number
        elif "*" in token or ">" in token:
            raise UsageError(f"{text!r}: {token!r} is not a token of a subject", "* and > stand for whole tokens")
        else:
            yield token


@dataclass(frozen=True)
class SubjectRules:
    rules: tuple[SubjectRule, ...] = ()  #: in the order of evaluation
    prefix: str = ""  #: without a dot at its end; "" for none

    @classmethod
    def parse(cls, rules: Iterable[str], prefix: str = "") -> Self:
        """Reads rules and a prefix; a dot at the end of the prefix is ignored."""
        prefix = prefix.removesuffix(".")
        if prefix and (problem := replay_problem(prefix.encode("utf-8", "surrogateescape"))):
            raise UsageError(f"the prefix {prefix!r} {problem}", "write it like a subject, such as 'replayed'")
        return cls(tuple(SubjectRule.parse(rule) for rule in rules), prefix)

    def subject(self, channel: bytes) -> bytes:
        """Returns the subject of a channel, which may be invalid: see `replay_problem`."""
        name = shown(channel)
        for rule in self.rules:
            subject = rule.apply(name)
            if subject is not None:
                name = subject
                break
        if self.prefix:
            name = f"{self.prefix}.{name}"
        return name.encode("utf-8", "surrogateescape")


def replay_problem(subject: bytes) -> str:
    """Returns why a subject cannot be published to, "" if it can; the text follows the subject in a sentence."""
    if subject.startswith(_RESERVED):
        return "belongs to the server: messages there are requests to it"
    return subject_problem(subject)


def channel_problem(channel: bytes) -> str:
    """Returns why a streaming server refuses a channel name, "" if it does not (protocol 10.2)."""
    if b"/" in channel or b"*" in channel or b">" in channel:
        return "contains /, * or >, which a streaming server refuses"
    return replay_problem(channel)
