"""The lease: the record of the state that says which of several servers writes to the streams.

Facts: high-availability.md section C.3.

A server takes the lease by writing its record directly after the last record of the state that it has read. So only
one of two candidates succeeds. The next record of the previous leader is refused, whatever its subject; that server
then reads the records in between and learns of the new lease.

Each record that is proven to be stored proves that the lease was not taken before it was sent. The leader writes the
lease again several times during its duration, which shows the others that it is alive. They take the lease when no
record was written for its whole duration, by their own clocks. As clocks may differ, the leader relies on a part of
the duration only, and sends no messages after that part. The streams fence the messages sent before, because they
accept each message at one sequence only.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

#: Prefix of the records' subjects, before the epoch. A late record of a former leader has another epoch, so it does not
#: replace the record of its successor.
LEASE: Final = b"lease."
#: seconds of a lease
TTL: Final = 2.0
#: part of the duration that the leader relies on, and renewals per duration
_CERTAIN: Final = 0.6
RENEWALS: Final = 4
#: earlier leases that a lease names
_REMEMBERED: Final = 32
#: failed renewals after the certain part until the leader gives the lease up
_MISSED: Final = 3


@dataclass(frozen=True, slots=True)
class Lease:
    node: str = ""  #: the leader; empty if there is none
    epoch: int = 0  #: number of leases so far
    line: tuple[str, ...] = ()  #: ids of the last leases and of this one; epochs repeat if streams are lost

    def next_for(self, node: str) -> Lease:
        """Returns the next lease, for the given node."""
        return Lease(node, self.epoch + 1, (*self.line[-_REMEMBERED:], secrets.token_hex(4)))

    def follows(self, other: Lease) -> bool:
        """Returns whether the other lease is this one or one of those it names."""
        return other.line[-1] in self.line if other.line else other.epoch <= self.epoch

    @property
    def subject(self) -> bytes:
        """The subject of the record, without the common prefix."""
        return LEASE + b"%d" % self.epoch

    def encode(self) -> bytes:
        return json.dumps({"node": self.node, "epoch": self.epoch, "line": self.line}).encode()

    @classmethod
    def decode(cls, record: bytes) -> Lease:
        """Decodes a record. Raises ValueError if it is not a lease."""
        try:
            fields = json.loads(record)
            return cls(str(fields["node"]), int(fields["epoch"]), tuple(map(str, fields.get("line", ()))))
        except (KeyError, TypeError) as problem:
            raise ValueError(f"it is not a lease: {problem!r}") from problem


class LeaseTerm:
    """The time for which a server has the lease, and its renewals.

    `write` is called with each record to write, `over` with the reason if the lease cannot be kept.
    """

    def __init__(
        self, lease: Lease, seconds: float, write: Callable[[bytes], object], over: Callable[[str], None]
    ) -> None:
        self.lease = lease
        self._seconds = seconds
        self._write = write
        self._over = over
        self._until = 0.0
        self._late_renewals = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def certain(self) -> bool:
        """Whether no other server can have taken the lease, since its time is not over."""
        return asyncio.get_running_loop().time() < self._until

    def extend(self, sent: float) -> None:
        """Extends the lease: a record sent at a time is stored."""
        self._until = max(self._until, sent + _CERTAIN * self._seconds)

    def begin(self) -> None:
        """Starts the renewals."""
        self._timer = asyncio.get_running_loop().call_later(self._seconds / RENEWALS, self._renew)

    def _renew(self) -> None:
        self._late_renewals = 0 if self.certain else self._late_renewals + 1
        if self._late_renewals > _MISSED:
            self._timer = None
            self._over("JetStream has not confirmed the lease in time")
            return
        self._write(self.lease.encode())
        self.begin()

    def release_lease(self) -> None:
        """Releases the lease, so that other servers need not wait."""
        self.stop()
        self._until = 0.0
        self._write(replace(self.lease, node="").encode())

    def stop(self) -> None:
        """Stops the renewals."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
