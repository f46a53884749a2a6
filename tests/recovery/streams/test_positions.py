"""Positions of salvaged consumers: a server accepts them, and no new message is before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stantools.recovery.streams.configs import SalvagedConfig
from stantools.recovery.streams.positions import SalvagedConsumer, within
from stantools.store.ranges import Ranges
from stantools.streamfiles.meta import ConsumerState


@st.composite
def states(draw: st.DrawFn) -> ConsumerState:
    floor = draw(st.integers(0, 12))
    delivered = floor + draw(st.integers(0, 8))
    unacknowledged = st.integers(floor + 1, max(delivered, floor + 1))
    pending = draw(st.sets(unacknowledged)) if delivered > floor else set()
    redelivered = {each: draw(st.integers(0, 3)) for each in pending if draw(st.booleans())}
    # each message is delivered under its own sequence
    return ConsumerState((floor, floor), (delivered, delivered), {each: (each, 0) for each in pending}, redelivered)


@given(states(), st.sets(st.integers(1, 20)), st.integers(0, 3))
def test_within_the_messages_that_are_left(state: ConsumerState, left: set[int], purged: int) -> None:
    assert not state.problem()
    last = max(left, default=0) + purged
    consumer = SalvagedConsumer("c", SalvagedConfig({}), state)
    within(consumer, Ranges.of((each, each) for each in left), last)
    found = consumer.state
    assert found is not None and not found.problem()
    assert found.delivered[1] == min(state.delivered[1], last)
    assert found.ack_floor[1] == min(state.ack_floor[1], last)
    assert found.pending.keys() == state.pending.keys() & left and found.redelivered.keys() <= found.pending.keys()
    assert bool(consumer.notes) == (state.delivered[1] > last or not state.pending.keys() <= left)
