"""Names of streams, consumers and subjects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stantools.nats.stream_names import (
    LONGEST,
    apart,
    choose,
    name_problem,
    reserved,
    safe_name,
    stream_name,
    subject_name,
    subject_problem,
)


def test_names_are_stable() -> None:
    rows: list[tuple[str, str]] = [
        ("orders", "orders"),
        ("orders.new", "orders_new"),
        ("a-b.c.D9", "a-b_c_D9"),
        ("orders_new", "orders_new-ebd069d5"),
        ("a b", "a_b-c8687a08"),
        ("grün", "gr_n-fe263064"),
        ("\udcff", "_-a8100ae6"),
    ]
    for channel, name in rows:
        assert stream_name(channel) == name, (channel, name)


def test_a_long_channel_is_cut_and_told_from_others() -> None:
    names = {stream_name("x" * 250 + end) for end in "abc"}
    assert len(names) == 3
    assert all(len(name) == LONGEST and not name_problem(name) for name in names)
    assert stream_name("x" * LONGEST) == "x" * LONGEST
    assert stream_name("x" * LONGEST, "P-") != "P-" + "x" * LONGEST
    assert len(stream_name("x" * LONGEST, "P-")) == LONGEST


_channels = st.text(st.sampled_from("aA1.-_ é*"), min_size=1, max_size=6)


@given(st.lists(_channels, min_size=1, max_size=12, unique=True), st.sampled_from(["", "S-"]))
def test_names_are_legal_and_all_different(channels: list[str], prefix: str) -> None:
    wanted = [stream_name(channel, prefix) for channel in channels]
    assert len(set(wanted)) == len(wanted)
    names = apart(wanted, channels)
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        assert not name_problem(name)
        assert len(name) <= LONGEST
        assert name.startswith(prefix)


def test_only_names_that_meet_are_changed() -> None:
    names = apart(["orders", "Orders", "other"], ["orders", "Orders", "other"])
    assert names[2] == "other"
    assert [name[:7] for name in names[:2]] == ["orders-", "Orders-"]
    assert apart(["orders"], ["orders"], taken=["ORDERS"])[0].startswith("orders-")
    # A channel that is named as another one would be after a collision.
    evil = ["orders", "Orders", names[0]]
    assert len({name.casefold() for name in apart(evil, evil)}) == 3


def test_choosing_takes_the_best_name_that_is_free() -> None:
    wanted = [["a", "x_a", "1"], ["a", "y_a", "2"], ["b", "z_b", "3"]]
    assert choose(wanted) == ["x_a", "y_a", "b"]
    # The second choice of one may be the first of another: both give way.
    assert choose([["a", "b", "1"], ["a", "c", "2"], ["b", "d", "3"]]) == ["1", "c", "d"]
    assert choose([["A", "A", "1"], ["a", "a", "2"]]) == ["1", "2"]


@given(st.lists(st.lists(st.sampled_from("abcA"), min_size=2, max_size=2), min_size=1, max_size=8))
def test_choices_are_all_different_and_do_not_depend_on_the_order(firsts: list[list[str]]) -> None:
    wanted = [[*names, f"last{number}"] for number, names in enumerate(firsts)]
    chosen = choose(wanted)
    assert len({name.casefold() for name in chosen}) == len(chosen)
    assert choose(wanted[::-1]) == chosen[::-1]


def test_names_that_the_server_refuses() -> None:
    rows: list[str] = ["", "a.b", "a b", "a*", ">", "a/b", "a\\b", "a\tb", "a\nb", "\udcff", "x" * 256]
    for name in rows:
        assert name_problem(name), name


def test_names_that_the_server_takes() -> None:
    rows: list[str] = ["a", "$x@:|%=-", "grün", "x" * 255, "on", "_"]
    for name in rows:
        assert not name_problem(name), name


def test_safe_names() -> None:
    assert safe_name("dur.1 x") == "dur_1_x"
    assert safe_name("") == "_"
    assert len(safe_name("x" * 500)) == LONGEST


def test_subjects() -> None:
    assert subject_name("orders.new") == "orders.new"
    assert subject_name("orders.new", "stan.") == "stan.orders.new"
    assert subject_name("a b") == "a_b-c8687a08"
    assert subject_name("a..b\udcff", "p.").startswith("p.a._.b_-")
    for channel in ("a b", "a..b", ".", "*", "a.>", "x\udcffy"):
        assert not subject_problem(subject_name(channel))
        assert subject_problem(channel)
    assert subject_problem("")
    assert not subject_problem("a.*.>", wildcards=True)
    assert subject_problem("a.>.b", wildcards=True)
    assert subject_problem("a.*")


def test_reserved_subjects() -> None:
    assert reserved("$JS.API.INFO") == "$JS.>"
    assert reserved("$SYS.x") == "$SYS.>"
    assert reserved(">") == "$JS.>"
    assert reserved("*.x") == "$JS.>"
    assert reserved("$JS") == ""
    assert reserved("orders.>") == ""
