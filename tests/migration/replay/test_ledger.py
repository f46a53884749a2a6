"""What was sent and what of it is confirmed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stantools.migration.replay.state import Ledger, ReplayPosition


def add(ledger: Ledger, channel: bytes, *sequences: int) -> int:
    return ledger.add(channel, list(sequences), [sequence * 10 for sequence in sequences])


def test_positions_follow_what_has_no_hole() -> None:
    ledger = Ledger({b"old": ReplayPosition(7, 70)})
    assert add(ledger, b"a", 1, 2, 5) == 0
    assert add(ledger, b"b", 1) == 3
    assert add(ledger, b"a", 6) == 4
    assert ledger.outstanding == 5
    assert ledger.confirm(1)
    assert ledger.positions() == {b"old": ReplayPosition(7, 70)}
    assert ledger.confirm(0)
    assert ledger.positions()[b"a"] == ReplayPosition(2, 20)
    assert not ledger.confirm(1)
    assert not ledger.confirm(5)
    assert ledger.where(4) == (b"a", 6)
    assert ledger.confirm(4)
    assert ledger.confirmed == 2
    assert ledger.outstanding == 2
    ledger.confirm_below(4)
    assert ledger.confirmed == 5
    assert ledger.outstanding == 0
    assert ledger.positions() == {
        b"old": ReplayPosition(7, 70),
        b"a": ReplayPosition(6, 60),
        b"b": ReplayPosition(1, 10),
    }


def test_what_is_sent_again_has_new_numbers() -> None:
    ledger = Ledger()
    add(ledger, b"a", 1, 2, 3)
    ledger.confirm(0)
    ledger.confirm(2)
    assert ledger.forget_outstanding() == 2
    assert ledger.positions() == {b"a": ReplayPosition(1, 10)}
    assert add(ledger, b"a", 2, 3) == 3
    assert not ledger.confirm(1)  # comes late, for the first attempt
    ledger.confirm_below(10)
    assert ledger.positions() == {b"a": ReplayPosition(3, 30)}
    assert ledger.confirmed == 3


def test_what_was_not_sent_after_all() -> None:
    ledger = Ledger()
    add(ledger, b"a", 1, 2, 3)
    add(ledger, b"b", 1, 2)
    add(ledger, b"a", 4)
    ledger.withdraw(4)
    assert ledger.outstanding == 4
    ledger.confirm_below(6)
    assert ledger.positions() == {b"a": ReplayPosition(3, 30), b"b": ReplayPosition(1, 10)}
    ledger.withdraw(9)
    assert add(ledger, b"b", 2) == 4
    ledger.withdraw(4)
    assert ledger.outstanding == 0


@given(st.data())
def test_any_order(data: st.DataObject) -> None:
    ledger = Ledger()
    sent: list[tuple[bytes, int]] = []
    for channel in data.draw(st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=8)):
        count = data.draw(st.integers(1, 4))
        before = sum(name == channel for name, _ in sent)
        sequences = range(before + 1, before + count + 1)
        assert add(ledger, channel, *sequences) == len(sent)
        sent += [(channel, sequence) for sequence in sequences]
    done: set[int] = set()
    for number in data.draw(st.permutations(range(len(sent)))):
        if number not in done:
            assert ledger.where(number) == sent[number]
        if data.draw(st.integers(0, 9)) == 0:
            ledger.confirm_below(number)
            done |= set(range(number))
        elif number not in done:
            assert ledger.confirm(number)
            done.add(number)
        low = next((n for n in range(len(sent)) if n not in done), len(sent))
        expected = {channel: ReplayPosition(sequence, sequence * 10) for channel, sequence in sent[:low]}
        assert ledger.positions() == expected
        assert ledger.confirmed == low
        assert ledger.outstanding == len(sent) - len(done)
