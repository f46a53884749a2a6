"""Waiting for answers, and which failures pass by themselves: a server restarts, a cluster elects a leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from stantools.errors import StantoolsError
from stantools.nats.errors import ApiError, NatsError

if TYPE_CHECKING:
    from stantools.nats.connection import Connection

_T = TypeVar("_T")


class SetBackError(NatsError):
    """Something is not done any more, as if a server was killed before it wrote that down; it can be done again."""

    passing = True


class OutOfStepError(NatsError):
    """Answers did not come in the order in which the messages were sent; what is stored has to be looked at."""

    passing = True


#: Wrong last sequence (another one is asked for then); too many requests.
_PASSING_CODES: Final = frozenset({10071, 10167})
_NOBODY: Final = 503
_PAUSES: Final = (0.02, 0.1, 0.25, 0.5, 1.0)


class Patience:
    """How long failures that may pass are borne without anything getting better.

    Args:
        seconds: So long.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self.interruptions = 0  #: how often something had to be done again
        self.renew()

    async def repeat(self, step: Callable[[], Awaitable[_T]], reached: Callable[[], int] = int) -> _T:
        """Does a step, again and again as long as what stops it may pass.

        Args:
            step: What to do.
            reached: Returns how far it is; whenever that has grown, the time starts over.

        Raises:
            StantoolsError: It failed for good, or for too long.
        """
        self.renew()
        while True:
            before = reached()
            try:
                return await step()
            except StantoolsError as problem:
                if reached() > before:
                    self.renew()
                self.interruptions += 1
                await self.bear(problem)

    def renew(self) -> None:
        """Something got better."""
        self._since = time.monotonic()
        self._failures = 0

    async def bear(self, problem: StantoolsError) -> None:
        """Waits a little, and until there is a connection.

        Args:
            problem: What happened.

        Raises:
            StantoolsError: The problem itself, if it will not pass, or has not for too long.
        """
        left = self._since + self._seconds - time.monotonic()
        if not passes(problem) or left <= 0:
            raise problem
        await asyncio.sleep(min(left, _PAUSES[min(self._failures, len(_PAUSES) - 1)]))
        self._failures += 1
        await self._connection.wait_connected(max(left, 0.1))


def passes(problem: StantoolsError) -> bool:
    """Returns whether a failure may pass by itself."""
    if problem.passing or not isinstance(problem, ApiError):
        return problem.passing
    return problem.err_code in _PASSING_CODES or (problem.code == _NOBODY and not problem.err_code)
