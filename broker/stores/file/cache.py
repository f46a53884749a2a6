"""How much memory all channels together may use for messages that are also on disk."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

#: Bytes of payloads, by default.
CACHE_BYTES = 32 << 20


class Forgetful(Protocol):
    """Something that holds messages that can be read again."""

    def forget(self) -> None:
        """Lets them go."""


class CacheBudget:
    """Lets those that were not used for the longest time forget, when all hold too much together."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._held: OrderedDict[Forgetful, int] = OrderedDict()
        self._total = 0

    def use(self, owner: Forgetful, size: int) -> None:
        """Takes note that an owner was used and how many bytes it holds now."""
        held = self._held
        self._total += size - held.get(owner, 0)
        held[owner] = size
        held.move_to_end(owner)
        while self._total > self._limit and len(held) > 1:
            other, freed = held.popitem(last=False)
            self._total -= freed
            other.forget()

    def leave(self, owner: Forgetful) -> None:
        """Takes note that an owner holds nothing any more."""
        self._total -= self._held.pop(owner, 0)
