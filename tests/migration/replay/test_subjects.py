"""Where replayed messages go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.errors import UsageError
from stantools.migration.replay.subjects import SubjectRule, SubjectRules, channel_problem, replay_problem
from stantools.store.directory import subject_matches


def test_rules() -> None:
    rows: list[tuple[list[str], str, str, str]] = [
        ([], "", "orders", "orders"),
        (["old.*=new.*"], "", "old.orders", "new.orders"),
        (["old.*=new.*"], "", "old.orders.eu", "old.orders.eu"),
        (["old.*=new.*"], "", "older.orders", "older.orders"),
        (["shop.*.*=$2.of.$1"], "", "shop.eu.paid", "paid.of.eu"),
        (["*.*=*.x.*"], "", "a.b", "a.x.b"),
        (["telemetry.>=lab.>"], "", "telemetry.a.b", "lab.a.b"),
        (["telemetry.>=lab.>"], "", "telemetry", "telemetry"),
        (["telemetry.>=all"], "", "telemetry.a.b", "all"),
        (["*.>=$1.>"], "", "a.b.c", "a.b.c"),
        ([">=lab.>"], "", "a.b", "lab.a.b"),
        (["orders=test"], "", "orders", "test"),
        (["a b=a.b"], "", "a b", "a.b"),
        (["a..b=a.b"], "", "a..b", "a.b"),
        (["a=b", "a=c"], "", "a", "b"),
        (["a=b", "b=c"], "", "a", "b"),
        (["x=y"], "p.q", "x", "p.q.y"),
        ([], "p.", "x", "p.x"),
        (["a=b=c"], "", "a", "b=c"),
    ]
    for rules, prefix, channel, subject in rows:
        assert SubjectRules.parse(rules, prefix).subject(channel.encode()) == subject.encode(), (
            rules,
            prefix,
            channel,
            subject,
        )


def test_a_name_that_is_not_utf_8_comes_back_as_it_was() -> None:
    assert SubjectRules.parse(["x.*=y.*"]).subject(b"x.\xff") == b"y.\xff"


def test_wrong_rules_are_refused() -> None:
    rows: list[tuple[str, str]] = [
        ("orders", "not a rule"),
        ("=x", "not a rule"),
        ("x=", "not a rule"),
        ("a.*=b.*.*", "more \\*"),
        ("a.*=b.$2", r"\$2"),
        ("a.*.*=$1.*", "mixes"),
        ("a=b.>", "only be last"),
        ("a.>=b.>.c", "only be last"),
        ("a.>.b=c", "only be last"),
        ("a=b..c", "empty token"),
        ("a.*=b*", "not a token"),
    ]
    for rule, says in rows:
        with pytest.raises(UsageError, match=says):
            SubjectRule.parse(rule)
            pytest.fail(f"accepted: {(rule, says)!r}")


def test_wrong_prefixes_are_refused() -> None:
    rows: list[str] = ["a..b", ".a", "a b", "a.*", "$JS.API"]
    for prefix in rows:
        with pytest.raises(UsageError, match="prefix"):
            SubjectRules.parse([], prefix)
            pytest.fail(f"accepted: {prefix!r}")


def test_subjects_that_nothing_can_be_published_to() -> None:
    rows: list[tuple[bytes, str]] = [
        (b"a.b", ""),
        ("grüße".encode(), ""),
        (b"a*", ""),
        (b"", "empty"),
        (b"a..b", "empty"),
        (b".a", "empty"),
        (b"a.", "empty"),
        (b"a b", "blank"),
        (b"a\r\nb", "blank"),
        (b"a.*", "wildcard"),
        (b"a.>", "wildcard"),
        (b"$JS.API.INFO", "server"),
        (b"$JSX", ""),
        (b"\xff", "UTF-8"),
    ]
    for subject, says in rows:
        problem = replay_problem(subject)
        assert says in problem if says else not problem, (subject, says)


def test_channels_that_a_streaming_server_refuses() -> None:
    rows: list[bytes] = [b"a/b", b"a*", b"a>b", b"a..b", b"", b"a b"]
    for channel in rows:
        assert channel_problem(channel), channel


tokens = st.text(st.sampled_from("ab"), min_size=1, max_size=2)
names = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.lists(tokens | st.just("*"), min_size=1, max_size=4).flatmap(
    lambda parts: st.sampled_from([parts, [*parts, ">"]]).map(".".join)
)


@given(patterns, names)
def test_a_rule_matches_what_the_same_pattern_matches_elsewhere(pattern: str, name: str) -> None:
    applied = SubjectRule.parse(f"{pattern}=x").apply(name)
    assert (applied == "x") == subject_matches(pattern, name)
    assert SubjectRule.parse(f"{pattern}={pattern}").apply(name) == (name if applied else None)
