"""Random histories on our broker and on the newest nats-server, side by side: what can be seen of both is the same.

A history that fails is played again by itself, with more patience, and shortened as far as it still fails: the test
prints what is left. `python -m tests.broker.streams.test_histories SEED …` plays some.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests import natsclient, servers
from tests.broker.streams import timers
from tests.broker.streams.comparison import Comparison, DifferenceError, Side
from tests.broker.streams.history import History, Step
from tests.broker.streams.timers import make
from tests.brokers import Broker

needs_server = pytest.mark.skipif(
    servers.NEWEST not in servers.available(), reason="the newest nats-server is not here"
)

#: Histories that are played at a time, apart from those that wait.
_TOGETHER: Final = 4
#: Seconds after which nothing more comes, first, and where a history has failed.
_QUIET, _QUIETER = 0.7, 3.0
#: Seconds after the beginning in which histories are shortened: more take too long on a busy machine.
_SHORTENING: Final = 900
#: Seconds in which servers have kept what is not kept at once.
_KEPT: Final = 2.5


def _acknowledges_more(found: DifferenceError) -> bool:
    """Limits, expiry, a roll-up or a deletion took a message that waited for an acknowledgement of policy `all`."""
    if found.step is None or not isinstance(found.ours, dict):
        return False
    own = found.step.values.get("consumer") if found.step.kind in ("ack", "fetch") else None
    places = [(name, found.config(name).get("ack_policy") == "all") for name, _, _ in found.differing()]
    if any(name.startswith(f"consumers.{own}.") for name, _ in places):
        return False
    return any("num_ack_pending" in name or name.endswith(".ack_floor") for name, every in places if every)


def _takes_more_of_a_burst(found: DifferenceError) -> bool:
    """Limits took messages of a burst: one of both had sent more of them by then."""
    if found.step is None or found.step.kind != "burst":
        return False
    names = [name for name, _, _ in found.differing()]
    return any(name.startswith("pushed.") for name in names) and all(
        name.startswith(("pushed.", "consumers.")) for name in names
    )


def _copies_less_of_a_burst(found: DifferenceError) -> bool:
    """Limits of the origin took messages of a burst: one of both had copied more of them by then."""
    last = found.step or next(reversed(found.before), None)
    return last is not None and last.kind == "burst" and found.limited


def _passes_what_was_given_up(found: DifferenceError) -> bool:
    """A message that waited for an acknowledgement went; those before it had been given up after their deliveries."""
    if not isinstance(found.ours, dict):
        return False
    places = found.differing()
    return bool(places) and all(
        name.endswith(".ack_floor") and own > other and found.config(name).get("max_deliver", -1) > 0
        for name, own, other in places
    )


def _waits_beyond(found: DifferenceError) -> bool:
    """A consumer that begins beyond the end of its stream was opened again."""
    places = found.differing() if found.step is None else []
    return bool(places) and all(
        name.startswith("consumers.") and name.endswith((".delivered", ".ack_floor")) and own[0] == 0 and own > other
        for name, own, other in places
    )


def _counts_what_is_gone(found: DifferenceError) -> bool:
    """A roll-up took messages that a consumer had not been given yet."""
    if found.step is None or "Nats-Rollup" not in found.step.values.get("headers", ()):
        return False
    return all(name.endswith(".num_pending") and own < other for name, own, other in found.differing())


def _counts_what_a_burst_lost(found: DifferenceError) -> bool:
    """Limits took messages of a burst, some from before the first sequence of a consumer, some from after it."""
    if found.step is None or found.step.kind != "burst":
        return False
    return all(
        name.endswith(".num_pending") and own < other and found.config(name)["deliver_policy"] == "by_start_sequence"
        for name, own, other in found.differing()
    )


def _waits_for_what_is_gone(found: DifferenceError) -> bool:
    """A purge of a part took a message that waited for an acknowledgement; ours continues with the next one."""
    if not _purges(found.step, "filter", "seq") or not isinstance(found.ours, dict):
        return False
    return all(_is_ahead(name, own, other) for name, own, other in found.differing())


def _is_ahead(name: str, own: Any, other: Any) -> bool:
    if own is None or other is None:
        return False
    if name.startswith("pushed."):
        return bool(own[: len(other)] == other)
    if name.endswith((".delivered", ".ack_floor")):
        # While messages are pending, only the sequence of the consumer is compared.
        size = min(len(own), len(other))
        own, other = own[:size], other[:size]
        return bool(own >= other)
    if name.endswith(".num_ack_pending"):
        return bool(own > other)
    return name.startswith("consumers.") and bool(own < other if "num_" in name else own > other)


def _purges(step: Step | None, *members: str) -> bool:
    """Returns whether a step is a purge with one of these members."""
    return step is not None and step.kind == "purge" and not step.values["body"].keys().isdisjoint(members)


def _rolls_up(found: DifferenceError) -> bool:
    """Returns whether a roll-up was published: a delete marker is one."""
    step = found.step
    return step is not None and (
        "Nats-Rollup" in step.values.get("headers", ()) or (step.kind == "wait" and found.marked)
    )


def _counts_what_a_purge_took(found: DifferenceError) -> bool:
    """A purge left some messages, none of which match the filters of a consumer."""
    if not _purges(found.step, "keep") or not isinstance(found.ours, dict):
        return False
    return all(name.endswith(".num_pending") and own < other for name, own, other in found.differing())


def _acknowledges_pending_ones(found: DifferenceError) -> bool:
    """A purge of a pattern, or a roll-up, took a message in the middle of those that wait for an acknowledgement."""
    if not (_rolls_up(found) or _purges(found.step, "filter")) or not isinstance(found.ours, dict):
        return False
    return all(name.endswith(".ack_floor") and own[:1] < other[:1] for name, own, other in found.differing())


def _passes_what_went_before(found: DifferenceError) -> bool:
    """A purge of a part, or a roll-up, took the first pending message; those after it had gone before."""
    if not (_rolls_up(found) or _purges(found.step, "filter", "seq", "keep")) or not isinstance(found.ours, dict):
        return False
    return all(
        name.endswith(".ack_floor") and own[:1] > other[:1] and len(own) == 1 for name, own, other in found.differing()
    )


def _counts_what_was_given_up(found: DifferenceError) -> bool:
    """A purge or a roll-up came after messages had been given up."""
    purged = found.step is not None and found.step.kind == "purge"
    if not (purged or _rolls_up(found)) or not isinstance(found.ours, dict):
        return False
    return all(
        name.endswith(".num_redelivered") and found.config(name).get("max_deliver", -1) > 1
        for name, _, _ in found.differing()
    )


def _counts_lasts_only(found: DifferenceError) -> bool:
    """A purge of a pattern had them count anew what is left for a consumer that began with the last of each subject."""
    if not _purges(found.step, "filter") or not isinstance(found.ours, dict):
        return False
    return all(
        name.endswith(".num_pending") and own > other and found.config(name)["deliver_policy"] == "last_per_subject"
        for name, own, other in found.differing()
    )


def _does_not_copy(found: DifferenceError) -> bool:
    """A stream limits the pending messages of its consumers, also of those by which real servers copy it."""
    limited = any(
        "max_ack_pending" in each.values.get("config", {}).get("consumer_limits", {}) for each in found.before
    )
    return limited and all(name.startswith("stream.") and not other for name, _, other in found.differing())


def _fetches(found: DifferenceError) -> bool:
    """Returns whether both answered a fetch, and their answers differ, not their states after it."""
    if found.step is None or found.step.kind not in ("fetch", "wait") or isinstance(found.ours, dict):
        return False
    return "silence" not in (*found.ours[:1], *found.theirs[:1])


def _forgets_what_is_queued(found: DifferenceError) -> bool:
    """A purge or a roll-up came while messages were queued for their next delivery; ours delivers them."""
    if not _fetches(found):
        return False
    if not any(each.kind == "purge" or "Nats-Rollup" in each.values.get("headers", ()) for each in found.before):
        return False
    own, other = (side[0][1] for side in (found.ours, found.theirs))
    return len(own) > 0 and own[0] != "1" and other[:1] in ((), ("1",))


def _moves_a_redelivery_back(found: DifferenceError) -> bool:
    """A request ended without the redelivery that it was looked at for; ours is still the first of the queue."""
    if not _fetches(found):
        return False
    ended = [each.values["body"] for each in found.before if each.kind == "fetch" and each.values["body"]]
    if not any(body.get("expires", 0) < 0 or "max_bytes" in body for body in ended):
        return False
    own, other = (side[0][1] for side in (found.ours, found.theirs))
    return "1" not in (*own[:1], *other[:1]) and len(own) == len(other) > 0 and own[1] != other[1]


def _shares_a_queue(found: DifferenceError) -> bool:
    """A consumer of a queue lost its filters while there are others; ours refuses that, as for a new one."""
    return (
        found.step is not None
        and found.step.kind == "consumer"
        and isinstance(found.ours, str)
        and found.ours.startswith(("error 10099", "error 10100"))
        and (found.theirs == "done" or str(found.theirs).startswith("error 10012"))
    )


#: What is different, and why. A history ends where it comes upon one of these.
KNOWN: Final = {
    "real servers take a pending message that goes by itself for acknowledged, with policy `all` also all before it, "
    "which no client has acknowledged": _acknowledges_more,
    "real servers forget at a start that a consumer waits for a sequence that is still to come": _waits_beyond,
    "real servers go on waiting for what a purge of a pattern or up to a sequence took, where a consumer wants more "
    "than that": _waits_for_what_is_gone,
    "real servers go on counting what a purge took that keeps some messages, until the next start": (
        _counts_what_a_purge_took
    ),
    "real servers raise the floor of acknowledgements over pending messages, if a purge of a pattern, a roll-up or a "
    "delete marker takes one after them": _acknowledges_pending_ones,
    "real servers raise the floor of acknowledgements at a purge of a part to what it took, not over what had gone": (
        _passes_what_went_before
    ),
    "real servers forget what was given up at a purge that leaves nothing pending, so that a stream with interest "
    "loses it at the next start; otherwise they go on counting what the purge took": _counts_what_was_given_up,
    "real servers count only the last message of each subject, when a purge has them count anew what is left for a "
    "consumer that began with these": _counts_lasts_only,
    "real servers do not copy a stream with limits for its consumers": _does_not_copy,
    "real servers leave the floor of acknowledgements where it was, if the last pending message goes after others were "
    "given up": _passes_what_was_given_up,
    "real servers forget at a purge what is queued for its next delivery, until its wait is over once more": (
        _forgets_what_is_queued
    ),
    "real servers put a redelivery at the end of the queue that no request takes": _moves_a_redelivery_back,
    "real servers let a consumer of a queue have the messages of others too, when it is changed": _shares_a_queue,
    "what is sent of a burst before limits take it is a matter of time": _takes_more_of_a_burst,
    "what is copied of a burst before limits of the origin take it is a matter of time": _copies_less_of_a_burst,
    "real servers go on counting what a roll-up of everything took": _counts_what_is_gone,
    "real servers count messages that are gone for a consumer whose first sequence came in the same burst": (
        _counts_what_a_burst_lost
    ),
}


def known(found: DifferenceError) -> bool:
    """Returns whether a difference is known."""
    return any(each(found) for each in KNOWN.values())


class Pair:
    """Our broker and a nats-server.

    Args:
        folder: For both.
    """

    def __init__(self, folder: Path) -> None:
        self.ours = Broker(folder / "ours", "-js", "-sd", folder / "store")
        self.theirs = servers.NatsServer(folder / "theirs", servers.NEWEST)
        self.clients: list[natsclient.Client] = []

    async def start(self) -> None:
        self.ours.start()
        self.theirs.start()
        await self.connect()

    async def connect(self) -> None:
        urls = (self.ours.url, self.theirs.url)
        self.clients = [await natsclient.connect(url, allow_reconnect=False) for url in urls]

    async def again(self, *, kill: bool) -> None:
        """Ends both, and starts them again."""
        if kill:
            await asyncio.sleep(_KEPT)
        await self.leave()
        for each in (self.ours, self.theirs):
            each.kill() if kill else each.stop()
        await self.start()

    async def leave(self) -> None:
        for client in self.clients:
            await client.close()

    def end(self) -> None:
        for each in (self.ours, self.theirs):
            if each.process is not None:
                each.kill()


@contextlib.asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    """A pair of servers that are running."""
    found = Pair(folder)
    try:
        await found.start()
        yield found
        await found.leave()
    finally:
        found.end()


def _are_brief(histories: Iterable[History]) -> bool:
    """Returns whether the timers of all histories are brief."""
    return all(each.seed in timers.SEEDS for each in histories)


async def play(two: Pair, histories: Iterable[History], prefix: str, quiet: float) -> list[Comparison]:
    """Plays histories at a time, with the ends and starts that they have."""
    played = list(histories)
    brief = _are_brief(played)
    gate = asyncio.Semaphore(_TOGETHER // 2 if brief else _TOGETHER)
    # With brief timers, requests end by themselves, and nothing is silent.
    quiet = _QUIETER if brief else quiet
    comparisons = []
    for row, history in enumerate(played):
        ours, theirs = (Side(client, f"{prefix}{row}", quiet) for client in two.clients)
        comparisons.append(Comparison(history, (ours, theirs), known, gate))
    for part in range(max(len(each.history.parts) for each in comparisons)):
        if part:
            await two.again(kill=part % 2 == 0)
            for each in comparisons:
                for side, client in zip(each.sides, two.clients, strict=True):
                    await side.resume(client)
        left = [each for each in comparisons if not each.over and part < len(each.history.parts)]
        await asyncio.gather(*(each.play(part, check=part > 0) for each in left))
    return comparisons


def shorter(history: History) -> Iterator[History]:
    """Iterates over histories with some steps less, the shortest ones first."""
    size = max(len(part) for part in history.parts)
    while size:
        for row, part in enumerate(history.parts):
            for at in range(0, len(part), size):
                less = part[:at] + part[at + size :]
                yield replace(history, parts=(*history.parts[:row], less, *history.parts[row + 1 :]))
        size //= 2


async def shorten(two: Pair, history: History, end: float) -> History:
    """Returns the shortest history that still fails, as far as one is found before a moment of the clock."""
    number = 0
    found = True
    while found:
        found = False
        for less in shorter(history):
            number += 1
            if time.monotonic() > end:
                return history
            [one] = await play(two, [less], f"s{number}x", _QUIETER)
            if one.difference is not None:
                history, found = less, True
                break
    return history


async def failures(folder: Path, seeds: Iterable[int], *, parts: int, size: int) -> list[str]:
    """Plays the histories of some seeds and returns the differences."""
    differences: list[str] = []
    end = time.monotonic() + _SHORTENING
    async with pair(folder) as two:
        played = await play(two, [make(seed, parts, size) for seed in seeds], "h", _QUIET)
        slow = [each for each in played if each.slow]
        together = slow and _are_brief(each.history for each in slow)
        for row, few in enumerate([slow] if together else [[each] for each in slow]):
            # Alone on the servers they have more time for their timers.
            again = await play(two, [each.history for each in few], f"t{row}x", _QUIET)
            played = [each for each in played if each not in few] + again
        for row, different in enumerate(each for each in played if each.difference is not None):
            # A difference of timing does not happen again.
            for attempt in "ru":
                [once_more] = await play(two, [different.history], f"{attempt}{row}x", _QUIETER)
                if not once_more.slow:
                    break
            if once_more.difference is not None:
                least = await shorten(two, different.history, end)
                steps = [f"  {step}" for part in least.parts for step in (*part, "-- servers end and start again")]
                differences.append("\n".join((str(once_more.difference), "shortened:", *steps[:-1])))
        logged = [line for line in two.ours.said().splitlines() if "[ERR]" in line or "Traceback" in line]
        # With no time left for timers nothing was compared.
        slow_number = sum(each.slow for each in played)
    if 2 * slow_number > len(played):
        logged.append(f"{slow_number} of {len(played)} were too slow")
    return [*differences, *logged]


@needs_server
async def test_short_histories_are_the_same_as_with_a_real_server(tmp_path: Path) -> None:
    # Those with timers take their time.
    seeds = [seed for seed in range(24) if not make(seed, 2, 10).spacing]
    found = await failures(tmp_path, seeds, parts=2, size=10)
    assert not found, "\n\n".join(found)


def _lengths(seed: int) -> tuple[int, int]:
    """Returns the number of parts of a history, and about that of the steps of a part."""
    return (3, 6) if seed in timers.SEEDS else (4, 16)


@needs_server
@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [
        *(range(start, start + 40) for start in range(1000, 1400, 40)),
        *(range(start, start + 20) for start in range(2000, 2040, 20)),
    ],
    ids=str,
)
async def test_histories_are_the_same_as_with_a_real_server(tmp_path: Path, seeds: range) -> None:
    parts, size = _lengths(seeds[0])
    found = await failures(tmp_path, seeds, parts=parts, size=size)
    assert not found, "\n\n".join(found)


if __name__ == "__main__":
    chosen = [int(each) for each in sys.argv[1:]]
    parts, size = _lengths(chosen[0])
    with tempfile.TemporaryDirectory() as temporary:
        print("\n\n".join(asyncio.run(failures(Path(temporary), chosen, parts=parts, size=size))))
