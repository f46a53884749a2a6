"""The total size of all streams and its limits (jetstream-server.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass

from broker.streams.api_errors import RequestError


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """Limits of all streams together, in bytes."""

    memory: int
    file: int

    def of(self, storage: str) -> int:
        return self.memory if storage == "memory" else self.file


class StorageQuota:
    def __init__(self, limits: QuotaLimits) -> None:
        self.limits = limits
        self._most = {storage: limits.of(storage) for storage in ("memory", "file")}
        self.used = {"memory": 0, "file": 0}  #: bytes of messages by storage type

    def check(self, storage: str, size: int) -> None:
        """Raises `RequestError` if messages would exceed the limit."""
        if self.used[storage] + size > self._most[storage]:
            raise RequestError(503, 10023, "insufficient resources")

    def left(self, storage: str) -> int:
        """Returns the number of free bytes."""
        return max(self._most[storage] - self.used[storage], 0)
