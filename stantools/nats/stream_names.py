"""Names: from channels to streams and subjects, from durables to consumers.

A stream's name follows from the channel's name alone, so that it is the same whichever other channels go along: a
channel of letters, digits, `-` and `.` only becomes the same with `_` for `.`; no `_` can have been there, so no two
channels meet. Any other channel gets `_` for what is not allowed and `-` with eight digits of its hash
(jetstream-migration.md section 11). What still meets, for example because only the case differs, gets its hash too.

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

#: Longest name that we choose; JetStream itself takes 255 bytes, but cannot always delete such a stream again.
LONGEST = 200
_LONGEST_ALLOWED = 255

#: Subjects of the system: JetStream does not store what is published there.
RESERVED = ("$JS.>", "$JSC.>", "$SYS.>")

_PLAIN_CHANNEL = re.compile(r"[A-Za-z0-9.-]+")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]")
_NO_SUBJECT = re.compile(r"[\x00-\x20\x7f*>\ud800-\udfff]")
_NO_NAME = re.compile(r"[\x00-\x20\x7f.*>/\\\ud800-\udfff]")


def dotted(prefix: str) -> str:
    """Returns a prefix of subjects with the dot that separates it."""
    return prefix if not prefix or prefix.endswith(".") else f"{prefix}."


def digits(text: str, count: int = 8) -> str:
    """Returns the first hexadecimal digits of the SHA-256 of a name."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:count]


def stream_name(channel: str, prefix: str = "") -> str:
    """Returns the stream's name for a channel; it does not depend on which other channels there are."""
    name = prefix + _UNUSUAL.sub("_", channel)
    if _PLAIN_CHANNEL.fullmatch(channel) and len(name) <= LONGEST:
        return name
    return with_hash(name, channel)


def with_hash(name: str, of: str, count: int = 8) -> str:
    """Appends digits of a hash to a name, which is cut to make room for them."""
    return f"{name[: LONGEST - 1 - count]}-{digits(of, count)}"


def apart(names: Sequence[str], origins: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Makes names differ, also where case does not count: each that meets another gets the hash of its origin.

    Args:
        names: The names.
        origins: What each was made from, all different.
        taken: Names that they must differ from too.
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
    """Chooses a name for each of several things: the first of its candidates that no other one wants.

    Args:
        candidates: For each thing its possible names, the best first. Two things never have the same last one.
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
    """Returns a text with `_` for all that a name should not have."""
    return _UNUSUAL.sub("_", text)[:LONGEST] or "_"


def name_problem(name: str) -> str:
    """Returns what is wrong with the name of a stream or consumer, "" if nothing is."""
    if not name:
        return "a name must not be empty"
    if found := _NO_NAME.search(name):
        return f"a name must not hold {found[0]!r}: letters, digits, - and _ are always right"
    if len(name.encode()) > _LONGEST_ALLOWED:
        return f"a name must not be longer than {_LONGEST_ALLOWED} bytes, this one has {len(name.encode())}"
    return ""


def subject_name(channel: str, prefix: str = "") -> str:
    """Returns the subject for a channel: its name, unless that cannot be a subject."""
    if not subject_problem(channel):
        return prefix + channel
    tokens = [_NO_SUBJECT.sub("_", token) or "_" for token in channel.split(".")]
    return f"{prefix}{'.'.join(tokens)}-{digits(channel)}"


def subject_problem(subject: str, *, wildcards: bool = False) -> str:
    """Returns what is wrong with a subject, "" if nothing is.

    Args:
        subject: The subject.
        wildcards: It may have `*` for a token and `>` at its end.
    """
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
    """Returns the system's subjects that a subject overlaps, "" if it overlaps none."""
    return next((system for system in RESERVED if overlap(subject, system)), "")
