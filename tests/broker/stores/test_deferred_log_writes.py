"""What is noted of subscriptions is written a little later, where flushes need not be durable, and never forgotten."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.stores.file import FileStore, deferred_log_writes
from broker.stores.file.deferred_log_writes import DELAY, DeferredLogWrites
from broker.stores.interface import ChannelStore
from stantools.format.proto import store_pb2 as pb
from stantools.store.compactionrules import CompactionRules
from tests.broker.stores.faults import faults
from tests.broker.stores.making import block, flush
from tests.broker.stores.test_subscriptions import NAME, found, new_store, subscription


class Clock:
    """In place of `time`, for the module that decides when it is written."""

    def __init__(self) -> None:
        self.now = 1_000
        self.step = 0

    def monotonic_ns(self) -> int:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(deferred_log_writes, "time", found)
    return found


class Owner:
    def __init__(self) -> None:
        self.written = 0

    def write_noted(self) -> None:
        self.written += 1


def test_nothing_waits_where_nobody_calls_again(clock: Clock) -> None:
    assert not DeferredLogWrites().takes(Owner())


def test_all_are_written_when_the_first_has_waited_long_enough(clock: Clock) -> None:
    waiting, asked = DeferredLogWrites(), list[int]()
    waiting.sooner = asked.append
    one, two, three = Owner(), Owner(), Owner()
    assert waiting.write() is None
    assert waiting.takes(one)
    clock.now += DELAY // 2
    assert waiting.takes(two) and waiting.takes(three)
    assert asked == [1_000 + DELAY]
    assert waiting.write() == 1_000 + DELAY
    waiting.forget(three)
    assert (one.written, two.written) == (0, 0)
    clock.now = 1_000 + DELAY
    assert waiting.write() is None
    assert (one.written, two.written, three.written) == (1, 1, 0)
    # The next time begins with who comes next.
    assert waiting.takes(one)
    assert asked[1:] == [clock.now + DELAY]


def test_others_have_their_turn_while_many_are_written(clock: Clock) -> None:
    waiting, asked = DeferredLogWrites(), list[int]()
    waiting.sooner = asked.append
    owners = [Owner() for _ in range(100)]
    for each in owners:
        assert waiting.takes(each)
    clock.now += DELAY
    clock.step = 100_000
    again = waiting.write()
    assert again is not None and again <= clock.now
    some = sum(each.written for each in owners)
    assert 10 <= some <= 30
    # Who comes meanwhile waits for the time of its own.
    late = Owner()
    assert waiting.takes(late)
    begin = clock.now
    while (again := waiting.write()) is not None and again <= clock.now:
        assert sum(each.written for each in owners) > some
        some = sum(each.written for each in owners)
    assert [each.written for each in owners] == [1] * 100
    assert again == begin + DELAY and not late.written
    assert len(asked) == 1, "it is called again anyway"


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[FileStore]:
    made = new_store(tmp_path / "store", auto_sync=0)
    made.postpone(lambda _at: None)
    yield made
    made.close()


def size(store: FileStore) -> int:
    return (store._root / NAME.decode() / "subs.dat").stat().st_size


def with_messages(store: FileStore, state: pb.SubState) -> ChannelStore:
    """A channel with a subscription that has three messages, all of it written."""
    channel = store.create_channel(NAME)
    channel.messages.append(block(NAME, 1, [b"x"] * 3))
    flush(store, channel.messages)
    channel.subscriptions.create(state)
    channel.subscriptions.flush()
    return channel


def test_what_is_sent_and_acknowledged_is_written_in_a_moment(store: FileStore, clock: Clock, tmp_path: Path) -> None:
    state = subscription()
    subscriptions = with_messages(store, state).subscriptions
    before = size(store)
    assert before > 4, "what somebody waits for is written at once"
    subscriptions.sent(state.id, [1, 2])
    assert subscriptions.flush() is None
    subscriptions.acked(state.id, [1])
    subscriptions.flush()
    assert size(store) == before
    shutil.copytree(store._root, tmp_path / "killed")
    at = store.maintain()
    assert at is not None and clock.now < at <= clock.now + DELAY
    clock.now = at
    assert store.maintain() is None
    assert size(store) > before
    # Acknowledgements by themselves do not wait for the next message of the channel.
    subscriptions.acked(state.id, [2])
    clock.now += DELAY
    store.maintain()
    shutil.copytree(store._root, tmp_path / "deferred_log_writes")
    assert [(each.last_sent, pending) for each, pending in found(tmp_path / "killed").values()] == [(0, [])]
    assert [(each.last_sent, pending) for each, pending in found(tmp_path / "deferred_log_writes").values()] == [
        (2, [])
    ]


@pytest.mark.parametrize("change", ["create", "update", "delete"])
def test_what_somebody_waits_for_is_written_with_all_before_it(
    store: FileStore, clock: Clock, tmp_path: Path, change: str
) -> None:
    one, two = subscription(), subscription(inbox=b"two")
    subscriptions = with_messages(store, one).subscriptions
    subscriptions.create(two)
    subscriptions.flush()
    subscriptions.sent(one.id, [1, 2])
    subscriptions.flush()
    if change == "create":
        subscriptions.create(subscription(inbox=b"three"))
    elif change == "update":
        two.max_in_flight = 77
        subscriptions.update(two)
    else:
        subscriptions.delete(two.id)
    subscriptions.flush()
    shutil.copytree(store._root, tmp_path / "killed")
    there = found(tmp_path / "killed")
    assert (there[one.id][0].last_sent, there[one.id][1]) == (2, [1, 2])
    assert sorted(there) == {"create": [1, 2, 3], "update": [1, 2], "delete": [1]}[change]
    if change == "update":
        assert there[two.id][0].max_in_flight == 77


def test_it_is_bounded(store: FileStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    state = subscription()
    subscriptions = with_messages(store, state).subscriptions
    monkeypatch.setattr("broker.stores.file.file_subscriptions.BOUND", 100)
    before = size(store)
    for sequence in range(1, 100):
        subscriptions.sent(state.id, [sequence])
        subscriptions.flush()
    assert size(store) > before + 98 * 12 - 200
    before = size(store)
    clock.now += DELAY
    store.maintain()
    # From here on it may wait again.
    subscriptions.sent(state.id, [100])
    subscriptions.flush()
    assert size(store) - before <= 100


def test_files_that_are_to_be_closed_are_written_before(store: FileStore, clock: Clock) -> None:
    state = subscription()
    subscriptions = with_messages(store, state).subscriptions
    before = size(store)
    subscriptions.sent(state.id, [1])
    assert subscriptions.release()  # type: ignore[attr-defined]
    assert size(store) > before
    with faults() as broken:
        subscriptions.sent(state.id, [2])
        broken.after = 0
        assert not subscriptions.release()  # type: ignore[attr-defined]
        broken.after = None
    store.close()
    ((last, pending),) = found(store._root).values()
    assert (last.last_sent, pending) == (2, [1, 2])


def test_a_disk_that_is_full_when_it_is_written(
    store: FileStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    state = subscription()
    subscriptions = with_messages(store, state).subscriptions
    with faults() as broken:
        subscriptions.sent(state.id, [1])
        broken.after = 0
        clock.now += DELAY
        store.maintain()
        assert broken.happened
    assert "Unable to flush subscriptions of channel foo.bar: " in caplog.text
    assert "No space left" in caplog.text
    # The next flush writes all anew.
    subscriptions.sent(state.id, [2])
    subscriptions.flush()
    store.settle()
    store.completed()
    shutil.copytree(store._root, store._root.with_name("killed"))
    ((last, pending),) = found(store._root.with_name("killed")).values()
    assert (last.last_sent, pending) == (2, [1, 2])


def test_the_end_writes_what_waits(store: FileStore, clock: Clock) -> None:
    state = subscription()
    subscriptions = with_messages(store, state).subscriptions
    subscriptions.sent(state.id, [1, 2])
    subscriptions.flush()
    store.close()
    ((last, pending),) = found(store._root).values()
    assert (last.last_sent, pending) == (2, [1, 2])


def test_a_channel_that_is_deleted_has_nothing_to_write(store: FileStore, clock: Clock) -> None:
    state = subscription()
    subscriptions = with_messages(store, state).subscriptions
    subscriptions.sent(state.id, [1, 2])
    store.delete_channel(NAME)
    store.settle()
    store.completed()
    clock.now += DELAY
    assert store.maintain() is None
    assert not (store._root / NAME.decode()).exists()


def test_a_compaction_has_what_waits(tmp_path: Path, clock: Clock) -> None:
    rules = CompactionRules(min_size=0, interval=1e-9, fragmentation=50)
    store = new_store(tmp_path / "store", compaction=rules)
    store.postpone(lambda _at: None)
    state = subscription()
    subscriptions = with_messages(store, state).subscriptions
    subscriptions.sent(state.id, range(1, 1001))
    subscriptions.acked(state.id, range(1, 991))
    store.settle()
    assert size(store) < 1000
    shutil.copytree(store._root, tmp_path / "killed")
    ((last, pending),) = found(tmp_path / "killed").values()
    assert (last.last_sent, pending) == (1000, [*range(991, 1001)])
    store.close()


def test_where_flushes_are_durable_nothing_waits(tmp_path: Path, clock: Clock) -> None:
    store = new_store(tmp_path / "store", sync=True)
    store.postpone(lambda _at: None)
    state = subscription()
    subscriptions = with_messages(store, state).subscriptions
    before = size(store)
    subscriptions.sent(state.id, [1])
    assert subscriptions.flush() is not None
    assert size(store) > before
    store.close()
