"""Mappings of subjects, in the language of NATS (jetstream-server.md section 16).

    orders.*.*    ->    sorted.{{partition(3,1)}}.$2.{{wildcard(1)}}

A destination is a subject. Its tokens may be functions of the tokens that match the source's wildcards.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from stantools.nats.subjects import matches, valid_pattern, valid_subject

#: Placeholders for tokens in a destination.
FUNCTION: Final = re.compile(r"\{\{.*?\}\}|\$\d+")
_CALL: Final = re.compile(r"\{\{\s*(\w+)\s*\((.*)\)\s*\}\}", re.DOTALL)
_SHORT: Final = re.compile(r"\$(\d{1,9})")
_NUMBER: Final = re.compile(r"-?\d{1,9}")
_BLANK: Final = re.compile(r"\s")
_FNV_OFFSET: Final = 2166136261
_FNV_PRIME: Final = 16777619

#: Limits: characters of a destination, and bytes of a mapped subject.
MOST_DESTINATION: Final = 4096
_MOST_RESULT: Final = 65535

#: Turns a wildcard's token into one token or several.
Function = Callable[[bytes, int], bytes]


class MappingError(Exception):
    """A mapping is not valid. `source` tells whether the error is in its source."""

    def __init__(self, text: str, *, source: bool = False) -> None:
        super().__init__(text)
        self.text, self.source = text, source


def _at(place: int, token: bytes) -> bytes:
    return token[:place] + b"." + token[place:] if 0 < place < len(token) else token


def _slices(token: bytes, size: int, first: int) -> bytes:
    """Cuts a token into slices of `size`, but the first into one of `first`."""
    if not 0 < size < len(token):
        return token
    return b".".join([token[:first]] * bool(first) + [token[i : i + size] for i in range(first, len(token), size)])


#: Functions of one token and a number.
_OF_NUMBER: Final[Mapping[str, Function]] = {
    "splitfromleft": lambda token, place: _at(place, token),
    "splitfromright": lambda token, place: _at(len(token) - place, token),
    "slicefromleft": lambda token, size: _slices(token, size, 0),
    "slicefromright": lambda token, size: _slices(token, size, len(token) % size if size > 0 else 0),
    "left": lambda token, size: token[:size] if size > 0 else token,
    "right": lambda token, size: token[-size:] if size > 0 else token,
}


class SubjectMapping:
    """A mapping from the subjects that match a pattern.

    An empty source matches every subject; an empty destination keeps the subject. Raises `MappingError`.
    """

    def __init__(self, source: str, destination: str) -> None:
        source = source or ">"
        if not valid_pattern(source.encode()):
            raise MappingError(f"invalid subject {source}", source=True)
        self.source = source.encode()
        tokens = source.split(".")
        #: Positions of the wildcards' tokens; number 0 is position 0.
        self._places = [0, *(i for i, token in enumerate(tokens) if token == "*")]
        self._rest = len(tokens) - 1 if tokens[-1] == ">" else 0
        if len(destination) > MOST_DESTINATION:
            raise MappingError(f"invalid mapping destination: it has more than {MOST_DESTINATION} characters")
        targets = destination.split(".") if destination else []
        if "" in targets:
            raise MappingError("invalid mapping destination: invalid transform")
        if ">" in targets[:-1]:
            raise MappingError(f"invalid mapping destination: invalid transform in {targets[targets.index('>') + 1]}")
        parts = [self._part(token) for token in targets]
        if targets and (targets[-1] == ">") != (tokens[-1] == ">"):
            raise MappingError("invalid subject")
        self._parts = parts

    def of(self, subject: bytes) -> bytes | None:
        """Returns the mapped subject, None without a match, and `subject` itself if the result is empty or too long."""
        if not matches(self.source, subject):
            return None
        if not self._parts:
            return subject
        tokens = subject.split(b".")
        parts, size = [], 0
        for part in self._parts:
            parts.append(part(tokens))
            size += len(parts[-1]) + 1
            if size > _MOST_RESULT:
                return subject
        made = b".".join(parts)
        return made if valid_subject(made) else subject

    def _part(self, token: str) -> Callable[[list[bytes]], bytes]:
        """Returns the function from a subject's tokens to a part of the destination."""
        if token == ">":
            return lambda tokens: b".".join(tokens[self._rest :])
        if short := _SHORT.fullmatch(token):
            return self._wildcard(int(short[1]), token)
        if token.startswith("{{") and token.endswith("}}"):
            call = _CALL.fullmatch(token)
            if call is None:
                raise _wrong("unknown function", token)
            return self._function(call[1].lower(), [each.strip() for each in call[2].split(",")], token)
        if token == "*" or _BLANK.search(token):
            raise MappingError("invalid subject")
        text = token.encode()
        return lambda tokens: text

    def _wildcard(self, number: int, token: str) -> Callable[[list[bytes]], bytes]:
        if not 0 <= number < len(self._places):
            raise _wrong("wildcard index out of range", token, f": [{number}]")
        place = self._places[number]
        return lambda tokens: tokens[place]

    def _function(self, name: str, words: list[str], token: str) -> Callable[[list[bytes]], bytes]:
        if name == "partition":
            most = _number(words[0], token)
            wanted = [self._wildcard(_number(word, token), token) for word in words[1:]]
            return lambda tokens: _partition([each(tokens) for each in wanted] or [b".".join(tokens)], most)
        needed = 1 if name in ("wildcard", "random") else 2
        if name not in ("wildcard", "random", "split", *_OF_NUMBER):
            raise _wrong("unknown function", token)
        if len(words) != needed or not words[0]:
            few = len(words) < needed or not words[0]
            raise _wrong(f"{'not enough' if few else 'too many'} arguments passed to the function", token)
        if name == "random":
            most = _number(words[0], token)
            return lambda tokens: b"%d" % (random.randrange(most) if most > 0 else 0)
        of = self._wildcard(_number(words[0], token), token)
        if name == "wildcard":
            return of
        if name == "split":
            return partial(_split, of, words[1].encode())
        function, number = _OF_NUMBER[name], _number(words[1], token)
        return lambda tokens: function(of(tokens), number)


def _split(of: Callable[[list[bytes]], bytes], separator: bytes, tokens: list[bytes]) -> bytes:
    token = of(tokens)
    return b".".join(filter(None, token.split(separator))) if separator else token


def _partition(tokens: list[bytes], most: int) -> bytes:
    """Returns the number of a partition: 32-bit FNV-1a over all tokens."""
    value = _FNV_OFFSET
    for byte in b"".join(tokens):
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return b"%d" % (value % most if most > 0 else 0)


def _number(word: str, token: str) -> int:
    if not word:
        raise _wrong("not enough arguments passed to the function", token)
    if not _NUMBER.fullmatch(word):
        raise _wrong("function argument is invalid or in the wrong format", token)
    return int(word)


def _wrong(what: str, token: str, more: str = "") -> MappingError:
    return MappingError(f"invalid mapping destination: {what} in {token}{more}")
