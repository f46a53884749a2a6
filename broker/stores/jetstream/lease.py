"""Who of several servers writes to the streams: a lease, which is a record of the state.

Facts: high-availability.md section C.3.

Whoever takes it writes the record directly behind all that he has read of the state. So of two who try one succeeds,
and whoever had the lease before is refused with his next record, whatever it is about, reads what came between, and
knows.

Each record that is proven to be stored proves that nobody had taken the lease when it was sent. The server that has it
writes the record again several times in a lease's time, so that others see that it lives. They take it when nothing was
written for as long, by their own clocks. As clocks may differ, whoever has it counts on a part of the time only, and
sends no messages behind that; what was sent before is fenced by the streams, which take each message in one place only.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

#: What the subjects of the records begin with; the epoch follows. What a server that has lost the lease still gets in
#: does not take the place of the record by which it lost it.
LEASE: Final = b"lease."
#: Seconds of a lease.
TTL: Final = 2.0
#: The part of it that whoever has the lease counts on, and how often he writes it again in the whole.
_CERTAIN: Final = 0.6
RENEWALS: Final = 4
#: How many leases before it a lease remembers.
_REMEMBERED: Final = 32
#: Renewals behind the certain part that nothing came of, after which the lease is given up.
_MISSED: Final = 3


@dataclass(frozen=True, slots=True)
class Lease:
    """What the record says."""

    node: str = ""  #: who has it; empty for nobody
    epoch: int = 0  #: how many have had it so far
    line: tuple[
        str, ...
    ] = ()  #: ids of the last leases before it, and its own; epochs come again where streams are lost

    def taken_by(self, node: str) -> Lease:
        """Returns the lease of a server that takes it over."""
        return Lease(node, self.epoch + 1, (*self.line[-_REMEMBERED:], secrets.token_hex(4)))

    def follows(self, other: Lease) -> bool:
        """Returns whether a lease is this one or one before it, as far as this one remembers."""
        return other.line[-1] in self.line if other.line else other.epoch <= self.epoch

    @property
    def subject(self) -> bytes:
        """The subject of the record, without what all begin with."""
        return LEASE + b"%d" % self.epoch

    def encode(self) -> bytes:
        """Returns the record."""
        return json.dumps({"node": self.node, "epoch": self.epoch, "line": self.line}).encode()

    @classmethod
    def decode(cls, record: bytes) -> Lease:
        """Reads a record. Raises ValueError if it is none."""
        try:
            fields = json.loads(record)
            return cls(str(fields["node"]), int(fields["epoch"]), tuple(map(str, fields.get("line", ()))))
        except (KeyError, TypeError) as problem:
            raise ValueError(f"it is not a lease: {problem!r}") from problem


class LeaseTerm:
    """The time for which a server has the lease.

    Args:
        lease: What its record says.
        seconds: How long it is good for.
        write: Writes the record.
        over: Called with the reason when the lease cannot be kept.
    """

    def __init__(
        self, lease: Lease, seconds: float, write: Callable[[bytes], object], over: Callable[[str], None]
    ) -> None:
        self.lease = lease
        self._seconds = seconds
        self._write = write
        self._over = over
        self._until = 0.0
        self._late = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def certain(self) -> bool:
        """Whether nobody else can have taken the lease as its time was over."""
        return asyncio.get_running_loop().time() < self._until

    def prove(self, sent: float) -> None:
        """Takes note that a record that was sent at a time is stored."""
        self._until = max(self._until, sent + _CERTAIN * self._seconds)

    def begin(self) -> None:
        """Begins to keep it."""
        self._timer = asyncio.get_running_loop().call_later(self._seconds / RENEWALS, self._renew)

    def _renew(self) -> None:
        self._late = 0 if self.certain else self._late + 1
        if self._late > _MISSED:
            self._timer = None
            self._over("JetStream has not confirmed the lease in time")
            return
        self._write(self.lease.encode())
        self.begin()

    def give_back(self) -> None:
        """Tells the others that they need not wait."""
        self.stop()
        self._until = 0.0
        self._write(replace(self.lease, node="").encode())

    def stop(self) -> None:
        """Keeps it no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
