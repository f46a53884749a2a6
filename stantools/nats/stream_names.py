"""Names: from channels to streams and subjects, from durables to consumers.

A stream's name follows from the channel's name alone, so that it is independent of other channels: a channel with
only letters, digits, `-` and `.` keeps its name with `_` for `.`; it contained no `_`, so no two channels collide.
Any other channel gets `_` for forbidden characters and `-` with eight digits of its hash (jetstream-migration.md
section 11). Names that still collide, for example because only the case differs, get the hash as well.

A channel's name can be any subject and usually stays one. JetStream refuses some names of streams, and names become
directories on the server: see `name_problem`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Sequence

from stantools.nats.subjects import overlap

#: Longest name chosen here; JetStream itself takes 255 bytes, but cannot always delete such a stream again.
LONGEST = 200
_LONGEST_ALLOWED = 255

#: subjects of the system, which JetStream does not store
RESERVED = ("$JS.>", "$JSC.>", "$SYS.>")

_PLAIN_CHANNEL = re.compile(r"[A-Za-z0-9.-]+")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]")
_NO_SUBJECT = re.compile(r"[\x00-\x20\x7f*>\ud800-\udfff]")
_NO_NAME = re.compile(r"[\x00-\x20\x7f.*>/\\\ud800-\udfff]")


def dotted(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith(".") else f"{prefix}."


def digits(text: str, count: int = 8) -> str:
    """Returns the first hexadecimal digits of the SHA-256 of a name."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:count]


def stream_name(channel: str, prefix: str = "") -> str:
    """Returns the stream's name for a channel; it does not depend on other channels."""
    name = prefix + _UNUSUAL.sub("_", channel)
    if _PLAIN_CHANNEL.fullmatch(channel) and len(name) <= LONGEST:
        return name
    return with_hash(name, channel)


def with_hash(name: str, source: str, count: int = 8) -> str:
    """Appends digits of a hash to a name, which is cut so that both have at most `LONGEST` bytes."""
    while len(os.fsencode(name)) > LONGEST - 1 - count:
        name = name[:-1]
    return f"{name}-{digits(source, count)}"


def apart(names: Sequence[str], origins: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Makes names differ, also if case is ignored: each that collides gets the hash of its origin.

    `origins` are the distinct sources of the names; the results also differ from `taken`.
    """
    result = list(names)
    fixed = {name.casefold() for name in taken}
    for count in (8, 16, 32, 64):
        seen = Counter(name.casefold() for name in (*result, *fixed))
        for at, name in enumerate(result):
            if seen[name.casefold()] > 1:
                result[at] = with_hash(names[at], origins[at], count)
    return result


def choose(candidates: Sequence[Sequence[str]]) -> list[str]:
    """Chooses a name for each of several things: the first of its candidates that no other thing has as a candidate.

    Candidates are listed best first. The last ones of two things always differ.
    """
    level = [0] * len(candidates)
    while True:
        names = [wanted[at] for wanted, at in zip(candidates, level, strict=True)]
        seen = Counter(name.casefold() for name in names)
        moved = False
        for at, name in enumerate(names):
            if seen[name.casefold()] > 1 and level[at] + 1 < len(candidates[at]):
                level[at] += 1
                moved = True
        if not moved:
            return names


def safe_name(text: str) -> str:
    """Returns a text with `_` for all characters that a name should not have."""
    return _UNUSUAL.sub("_", text)[:LONGEST] or "_"


def name_problem(name: str) -> str:
    """Returns the error of a stream's or consumer's name, "" if none."""
    if not name:
        return "a name must not be empty"
    if found := _NO_NAME.search(name):
        return f"a name must not hold {found[0]!r}: letters, digits, - and _ are always valid"
    if len(name.encode()) > _LONGEST_ALLOWED:
        return f"a name must not be longer than {_LONGEST_ALLOWED} bytes, this one has {len(name.encode())}"
    return ""


def subject_name(channel: str, prefix: str = "") -> str:
    """Returns the subject for a channel: its name, unless that is not a valid subject."""
    if not subject_problem(channel):
        return prefix + channel
    tokens = [_NO_SUBJECT.sub("_", token) or "_" for token in channel.split(".")]
    return f"{prefix}{'.'.join(tokens)}-{digits(channel)}"


def subject_problem(subject: str, *, wildcards: bool = False) -> str:
    """Returns the error of a subject, "" if none; `wildcards` permits `*` for a token and `>` at the end."""
    if not subject:
        return "a subject must not be empty"
    tokens = subject.split(".")
    if "" in tokens:
        return f"{subject!r} is not a subject: a part between two dots is empty"
    if wildcards:
        last = len(tokens) - 1
        tokens = [t for at, t in enumerate(tokens) if t != "*" and not (t == ">" and at == last)]
    for token in tokens:
        if found := _NO_SUBJECT.search(token):
            return f"{subject!r} is not a subject: it must not hold {found[0]!r}"
    return ""


def reserved(subject: str) -> str:
    """Returns the system's subjects that a subject overlaps, "" if none."""
    return next((system for system in RESERVED if overlap(subject, system)), "")
