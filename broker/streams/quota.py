"""What all streams take together, and what they may take (jetstream-server.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass

from broker.streams.api_errors import RequestError


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """What all streams may take together, in bytes."""

    memory: int  #: in memory
    file: int  #: in files

    def of(self, storage: str) -> int:
        """Returns the limit of a storage type."""
        return self.memory if storage == "memory" else self.file


class StorageQuota:
    """What all streams take together.

    Args:
        limits: What they may take.
    """

    def __init__(self, limits: QuotaLimits) -> None:
        self.limits = limits
        self._most = {storage: limits.of(storage) for storage in ("memory", "file")}
        self.used = {"memory": 0, "file": 0}  #: bytes of messages by storage type

    def check(self, storage: str, size: int) -> None:
        """Checks whether a message may be stored.

        Raises:
            ApiError: All streams together would take too much.
        """
        if not self.has(storage, size):
            raise RequestError(503, 10023, "insufficient resources")

    def left(self, storage: str) -> int:
        """Returns how many bytes there is room for."""
        return max(self._most[storage] - self.used[storage], 0)

    def has(self, storage: str, size: int) -> bool:
        """Returns whether messages of some size may be stored."""
        return self.used[storage] + size <= self._most[storage]
