"""Unique ids: of servers, inboxes and connections."""

from __future__ import annotations

import secrets
from typing import Final

_DIGITS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_SIZE: Final = 12
_COUNTER_SIZE: Final = 10
_COUNTERS: Final = len(_DIGITS) ** _COUNTER_SIZE


class Nuids:
    """Unique names of 22 digits and letters: a random part, and a counter that begins and steps at random."""

    def __init__(self) -> None:
        self._random = bytes(secrets.choice(_DIGITS) for _ in range(_RANDOM_SIZE))
        self._counter = secrets.randbelow(_COUNTERS)
        self._step = 33 + secrets.randbelow(300)

    def new(self) -> bytes:
        """Returns the next one."""
        self._counter = rest = (self._counter + self._step) % _COUNTERS
        digits = bytearray(_COUNTER_SIZE)
        for i in range(_COUNTER_SIZE - 1, -1, -1):
            rest, digit = divmod(rest, len(_DIGITS))
            digits[i] = _DIGITS[digit]
        return self._random + bytes(digits)

    def inbox(self) -> bytes:
        """Returns a new inbox."""
        return b"_INBOX." + self.new()


def new_id() -> str:
    """Returns an id that nothing else has, as servers call themselves: 22 digits and letters."""
    return Nuids().new().decode()
