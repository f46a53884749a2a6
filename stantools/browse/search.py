"""Search for messages of a window that contain a text, a pattern or bytes, forward and backward.

A plain payload is searched in place: records are read many at a time, their bytes are searched in one pass, and the
record of a match is determined afterwards. Patterns and encrypted payloads are searched message by message, patterns
in a separate process: however long one takes, the search can be cancelled and nothing else stops.
"""

from __future__ import annotations

import os
import pickle
import re
import selectors
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stantools.browse.row_model import MessageStretch
from stantools.browse.stretch_reader import BLOCK, StoredTexts
from stantools.browse.window import RowWindow, WindowMessage
from stantools.errors import StantoolsError, StoreUnreadableError, UsageError
from stantools.escaping import escape
from stantools.format.columns import MessageRecords
from stantools.progress import Progress

#: Bytes that are searched together, unless one record is larger.
_REGION = 1 << 20


@dataclass(frozen=True)
class SearchQuery:
    """A search expression."""

    pattern: re.Pattern[bytes]  #: found in a payload or a reply subject
    fixed: bool  #: a plain text or bytes: a match does not depend on the bytes around it
    text: str  #: as the user wrote it
    case: bool  #: upper and lower case differ


def parse_query(text: str) -> SearchQuery:
    r"""Parses a search expression: a text, `r:` and a regular expression over bytes, or `x:` and bytes in hex.

    Case matters if the text contains an upper-case letter. `t:` at the beginning allows a text that begins with
    `r:`, `x:` or `t:`. Raises `UsageError` if the expression is invalid.
    """
    kind, wanted = (text[0], text[2:]) if text[:2] in ("r:", "x:", "t:") else ("t", text)
    if not wanted.strip():
        raise UsageError("there is nothing to look for", "a text, r:PATTERN, or x:DE AD BE EF")
    if kind == "x":
        digits = "".join(wanted.split()).removeprefix("0x")
        try:
            return SearchQuery(re.compile(re.escape(bytes.fromhex(digits))), fixed=True, text=text, case=True)
        except ValueError:
            raise UsageError(f"{escape(wanted)} is not bytes in hex", "two digits each, such as x:de ad") from None
    case = wanted != wanted.lower()
    if kind == "r":
        try:
            pattern = re.compile(wanted.encode("utf-8", "surrogateescape"), 0 if case else re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as problem:
            raise UsageError(f"{escape(wanted)} is not a regular expression: {problem}") from None
        return SearchQuery(pattern, fixed=False, text=text, case=case)
    return SearchQuery(_literal(wanted, case=case), fixed=True, text=text, case=case)


def _literal(text: str, *, case: bool) -> re.Pattern[bytes]:
    """Returns a pattern for a text; without case it matches each letter in all its forms."""
    if case or text.isascii():
        whole = re.escape(text.encode("utf-8", "surrogateescape"))
        return re.compile(whole, 0 if case else re.IGNORECASE)
    parts = []
    for letter in text:
        forms = dict.fromkeys((letter, letter.lower(), letter.upper()))
        encoded = [re.escape(form.encode("utf-8", "surrogateescape")) for form in forms]
        parts.append(encoded[0] if len(encoded) == 1 else b"(?:" + b"|".join(encoded) + b")")
    return re.compile(b"".join(parts))


class Searcher:
    """Searches the rows of a window, by a window of its own. Payloads are decrypted if it has a key."""

    def __init__(self, window: RowWindow, query: SearchQuery) -> None:
        self._window = window.another()
        self._query = query
        self._matcher = None if query.fixed else Matcher(query.pattern)

    def close(self) -> None:
        """Closes the files and ends the worker process."""
        self._window.close()
        if self._matcher is not None:
            self._matcher.close()

    def forward(self, first: int, last: int, progress: Progress | None = None) -> int | None:
        """Returns the first matching row from `first` to `last` (exclusive), None if there is none.

        `progress` is called with rows as they are done, and with 0 while a pattern takes long. Raises
        `StantoolsError` if the worker process fails.
        """
        return next(self.matches(first, last, progress), None)

    def matches(self, first: int, last: int, progress: Progress | None = None) -> Iterator[int]:
        """Iterates over every matching row, rising; arguments and errors as in `forward`."""
        at = first
        for low, high in self._spans(first, last):
            yield from self._of_span(low, high, progress)
            if progress:
                progress(high - at)
            at = high

    def backward(self, first: int, last: int, progress: Progress | None = None) -> int | None:
        """Returns the last matching row from `first` to `last` (exclusive); arguments and errors as in `forward`."""
        for low, high in reversed(self._spans(first, last)):
            found = self._of_span(low, high, progress)
            if found:
                return found[-1]
            if progress:
                progress(high - low)
        return None

    def _spans(self, first: int, last: int) -> list[tuple[int, int]]:
        first, last = max(first, 0), min(last, len(self._window))
        return [(low, min(low + BLOCK, last)) for low in range(first, last, BLOCK)]

    def _of_span(self, first: int, last: int, progress: Progress | None) -> list[int]:
        found = []
        for row in self._window.single_rows(first, last):
            message = self._window.row(row)
            if isinstance(message, WindowMessage) and any(
                self._matching([[message.data, *([message.reply] if message.reply else [])]], progress)
            ):
                found.append(row)
        for stretch, begin, low, high in self._window.stretches(first, last):
            with suppress(StoreUnreadableError):  # its rows show the reason
                located = self._window.reader.located(stretch, low, high)
                found += [begin + stretch.row_of(low + each) for each in self._of_messages(stretch, located, progress)]
        return sorted(found)

    def _of_messages(
        self, stretch: MessageStretch, located: MessageRecords, progress: Progress | None
    ) -> Iterator[int]:
        for low, high in _regions(located):
            texts = self._window.reader.texts(stretch, located.part(low, high))
            for position in self._of_region(texts, progress):
                yield low + position

    def _of_region(self, texts: StoredTexts, progress: Progress | None) -> list[int]:
        plain = not self._window.decrypts and self._query.fixed
        if plain:
            return self._plain(texts) if self._query.pattern.search(texts.raw) else []
        raw, reader = texts.raw, self._window.reader
        positions = np.flatnonzero(texts.good).tolist()
        messages = []
        for position in positions:
            places = [(int(starts[position]), int(sizes[position])) for starts, sizes in texts.fields]
            (data, size), *others = places
            payload = reader.payload(raw[data : data + size])
            messages.append([payload, *(raw[start : start + length] for start, length in others if length)])
        matching = self._matching(messages, progress)
        return [position for position, matches in zip(positions, matching, strict=True) if matches]

    def _plain(self, texts: StoredTexts) -> list[int]:
        """Finds records by matches in their joint bytes; a match counts within one of their texts."""
        found: list[int] = []
        search, at, raw = self._query.pattern.search, 0, texts.raw
        while match := search(raw, at):
            start, end = match.span()
            position = int(np.searchsorted(texts.offset, start, side="right")) - 1
            at = start + 1
            if position < 0 or not texts.good[position]:
                continue
            for begins, sizes in texts.fields:
                begin = int(begins[position])
                if sizes[position] and begin <= start and end <= begin + int(sizes[position]):
                    found.append(position)
                    at = int(texts.end[position])  # The record matches already: continue after it.
                    break
        return found

    def _matching(self, messages: Sequence[Sequence[bytes]], progress: Progress | None) -> list[bool]:
        if self._matcher is not None:
            return self._matcher.matching(messages, progress) if messages else []
        search = self._query.pattern.search
        return [any(search(text) for text in texts) for texts in messages]


def _regions(located: MessageRecords) -> Iterator[tuple[int, int]]:
    """Iterates over groups of messages that are read together."""
    ends, low = located.ends, 0
    while low < len(located):
        limit = int(located.offset[low]) + _REGION
        high = max(int(np.searchsorted(ends, limit, side="right")), low + 1)
        yield low, high
        low = high


#: Seconds between checks for cancellation.
_CHECK_INTERVAL = 0.05
_CHILD = Path(__file__).with_name("regex_worker.py")


class Matcher:
    """Finds the messages that match a pattern, in a process of its own. For one thread at a time.

    `re` holds the interpreter's lock while it matches a text, and some patterns take years on forty letters
    (`(a+)+$`): in a thread they would stop everything, and nothing could stop them. A process leaves other threads
    running, and can be ended. No pattern is refused.

    The process starts with the first use, and ends by `close`, with the last reference, or with the program.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Matcher] | None = None

    def close(self) -> None:
        """Ends the process at once."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def matching(self, messages: Sequence[Sequence[bytes]], progress: Progress | None = None) -> list[bool]:
        """Returns for each message whether the pattern is found in one of its texts.

        `progress` is called with 0 twenty times a second during the wait; an exception from it ends the process.
        Raises `StantoolsError` if the process cannot be started, or has ended by itself.
        """
        try:
            return self._match(messages, progress)
        except OSError as problem:
            self.close()
            text = f"the pattern cannot be matched: {problem.strerror or problem}"
            raise StantoolsError(text, "search again, or for a plain text") from problem
        except BaseException:
            self.close()
            raise

    def _match(self, messages: Sequence[Sequence[bytes]], progress: Progress | None) -> list[bool]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        # The process reads all of it before it begins, so that this does not wait for a match.
        pickle.dump(messages, process.stdin)
        process.stdin.flush()
        found = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while len(found) < len(messages):
                if not ready.select(_CHECK_INTERVAL):
                    if progress:
                        progress(0)
                    continue
                part = os.read(process.stdout.fileno(), len(messages) - len(found))
                if not part:
                    raise OSError("its process has ended")
                found += part
        return [each != 0 for each in found]

    def _start(self) -> subprocess.Popen[bytes]:
        # Independent of the environment and of installed packages.
        command = [sys.executable, "-I", "-S", str(_CHILD), str(os.getpid())]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._process, self._end = process, weakref.finalize(self, _end, process)
        assert process.stdin is not None
        pickle.dump(self._pattern, process.stdin)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # unread input is worthless now
            if pipe is not None:
                pipe.close()
    process.wait()
