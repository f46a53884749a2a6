"""Requests in turns: in which order they are answered, and who waits for whom."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from broker.streams.requestqueue import QueuedRequest, RequestQueue
from tests.conftest import others_slow

NEVER = 0.0


def request(
    name: str, log: list[str], *, client: bytes = b"", stream: bytes = b"", steps: int = 1, heard: bool = True
) -> QueuedRequest:
    def work() -> Iterator[None]:
        for number in range(steps):
            log.append(f"{name}{number}")
            yield
        log.append(f"{name}!")

    return QueuedRequest(client or name.encode(), stream, 10, work(), lambda: heard)


def finish(queue: RequestQueue) -> None:
    while queue.busy:
        queue.run(NEVER)


def test_a_short_request_overtakes_a_long_one_of_another_client() -> None:
    log: list[str] = []
    queue = RequestQueue()
    queue.put(request("a", log, steps=50), NEVER)
    queue.put(request("b", log, steps=2), NEVER)
    finish(queue)
    assert log.index("b!") < log.index("a9") and log[-1] == "a!"
    assert queue.slices >= 50


def test_requests_of_a_client_and_changes_of_a_stream_keep_their_order() -> None:
    log: list[str] = []
    queue = RequestQueue()
    queue.put(request("a", log, client=b"1", steps=20), NEVER)
    queue.put(request("b", log, client=b"1"), NEVER)  # waits for a, as it is from the same client
    queue.put(request("c", log, client=b"2", stream=b"S", steps=5), NEVER)
    queue.put(request("d", log, client=b"3", stream=b"S"), NEVER)  # changes what c changes
    queue.put(request("e", log, client=b"3"), NEVER)  # waits for d
    queue.put(request("f", log, client=b"4"), NEVER)  # only asks
    finish(queue)
    ends = [each[0] for each in log if each.endswith("!")]
    assert ends.index("a") < ends.index("b") and ends.index("c") < ends.index("d") < ends.index("e")
    assert ends.index("f") < ends.index("c")
    assert log.index("d0") > log.index("c!")


def test_what_nobody_hears_is_given_up_unless_it_changes_something() -> None:
    log: list[str] = []
    queue = RequestQueue()
    queue.put(request("a", log, steps=5, heard=False), NEVER)
    queue.put(request("b", log, steps=5, heard=False, stream=b"S"), NEVER)
    finish(queue)
    assert "a!" not in log and "b!" in log


def test_the_server_itself_waits_for_no_client() -> None:
    log: list[str] = []
    queue = RequestQueue()
    queue.put(request("a", log, client=b"", steps=50), NEVER)  # nobody gets its answer
    queue.put(QueuedRequest(None, b"S", 0, request("b", log, steps=2).steps, lambda: True), NEVER)
    queue.put(QueuedRequest(None, b"", 0, request("c", log, steps=2).steps, lambda: True), NEVER)
    finish(queue)
    assert max(log.index("b!"), log.index("c!")) < log.index("a9")


def test_a_mistake_costs_one_request() -> None:
    log: list[str] = []
    queue = RequestQueue()

    def wrong() -> Iterator[None]:
        yield
        raise KeyError("a mistake")

    queue.put(QueuedRequest(b"1", b"S", 0, wrong(), lambda: True), NEVER)
    queue.put(request("b", log, client=b"1", stream=b"S"), NEVER)
    finish(queue)
    assert log[-1] == "b!"


def test_more_than_may_wait_is_told() -> None:
    log: list[str] = []
    queue = RequestQueue()
    for number in range(10_000):
        assert not queue.full
        queue.put(request(f"{number}.", log, client=b"one"), NEVER)
    assert queue.full
    queue.run(NEVER)
    finish(queue)
    assert not queue.full and len(log) == 20_000
    large = QueuedRequest(b"one", b"", 64 << 20, iter([None] * 3), lambda: True)
    queue.put(large, NEVER)
    assert queue.full
    queue.clear()
    assert not queue.full and not queue.busy


@pytest.mark.parametrize("seed", others_slow(range(5), range(2)))
def test_whatever_comes_ends_in_an_order_that_is_allowed(seed: int) -> None:
    """Of two requests that may not overtake each other the second one begins after the first one has ended."""
    chance = random.Random(seed)
    log: list[str] = []
    queue = RequestQueue()
    sent: list[tuple[str, bytes, bytes]] = []
    for number in range(400):
        name = f"{number}-"
        client, stream = b"%d" % chance.randrange(6), chance.choice((b"", b"", b"A", b"B", b"C"))
        sent.append((name, client, stream))
        # Some are done at once, if nothing is before them.
        deadline = chance.choice((NEVER, float("inf")))
        queue.put(request(name, log, client=client, stream=stream, steps=chance.randrange(6)), deadline)
        if chance.random() < 0.5:
            queue.run(NEVER)
    finish(queue)
    begins = {name: min(row for row, each in enumerate(log) if each.startswith(name)) for name, _, _ in sent}
    ends = {name: log.index(f"{name}!") for name, _, _ in sent}
    for row, (name, client, stream) in enumerate(sent):
        for before, other, changed in sent[:row]:
            if other == client or (stream and changed == stream):
                assert ends[before] < begins[name]
