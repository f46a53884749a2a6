"""Subjects and patterns."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from stantools.nats.subjects import SubjectOwners, is_literal, matches, overlap, valid_pattern, valid_subject

BOTH = [b"foo", b"foo.bar", b"f*o", b"a>b.c", b"**", b">>", b"$SYS.x", b"a.\xff\x00.b", b"x." * 100 + b"x"]
PATTERNS = [b"*", b">", b"foo.*", b"foo.>", b"*.*.>", b"*.x.*", b"foo.>>", b"a.b*.>"]
NEITHER = [
    b"",
    b".",
    b"foo.",
    b".foo",
    b"a..b",
    b"a b",
    b"a\tb",
    b"a\r",
    b"a\n",
    b"\n",
    b"a.\x0c",
    b">.a",
    b"a.>.b",
    b"a.>.",
]


def test_subjects() -> None:
    for subject in BOTH:
        assert valid_subject(subject), subject
        assert valid_pattern(subject), subject
        assert is_literal(subject), subject


def test_patterns() -> None:
    for pattern in PATTERNS:
        assert valid_subject(pattern) is (pattern == b"foo.>>"), pattern
        assert valid_pattern(pattern), pattern
        assert is_literal(pattern) is (pattern == b"foo.>>"), pattern


def test_neither() -> None:
    for neither in NEITHER:
        assert not valid_subject(neither), neither
        assert not valid_pattern(neither), neither


def test_matches() -> None:
    rows: list[tuple[bytes, bytes, bool]] = [
        (b"foo", b"foo", True),
        (b"foo", b"foo.bar", False),
        (b"*", b"foo", True),
        (b"*", b"foo.bar", False),
        (b">", b"foo", True),
        (b">", b"foo.bar.baz", True),
        (b"foo.*", b"foo", False),
        (b"foo.*", b"foo.bar", True),
        (b"foo.*", b"bar.bar", False),
        (b"foo.*.baz", b"foo.bar.baz", True),
        (b"foo.*.baz", b"foo.bar.bar", False),
        (b"foo.>", b"foo", False),
        (b"foo.>", b"foo.bar", True),
        (b"foo.>", b"foo.bar.baz", True),
        (b"foo.>", b"fox.bar", False),
        (b"f*", b"foo", False),
        (b"f*", b"f*", True),
    ]
    for pattern, subject, expected in rows:
        assert matches(pattern, subject) is expected, (pattern, subject, expected)


TOKENS = st.sampled_from([b"a", b"b", b"*", b">", b""])


@st.composite
def patterns(draw: st.DrawFn) -> bytes:
    tokens = draw(st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=4))
    if draw(st.booleans()):
        tokens[-1] = b">"
    return b".".join(tokens)


LITERALS = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=5).map(b".".join)


def model(pattern: list[bytes], subject: list[bytes]) -> bool:
    if pattern == [b">"]:
        return bool(subject)
    if not pattern or not subject:
        return pattern == subject
    return pattern[0] in (b"*", subject[0]) and model(pattern[1:], subject[1:])


@given(patterns(), LITERALS)
def test_matches_like_the_model(pattern: bytes, subject: bytes) -> None:
    assert matches(pattern, subject) is model(pattern.split(b"."), subject.split(b"."))


@given(st.lists(TOKENS, max_size=5).map(b".".join))
def test_valid_like_the_model(text: bytes) -> None:
    tokens = text.split(b".")
    assert valid_subject(text) is all(token in (b"a", b"b") for token in tokens)
    assert valid_pattern(text) is (b"" not in tokens and b">" not in tokens[:-1])


def test_long_subjects_take_no_time() -> None:
    long = b"a." * 100_000
    assert not valid_subject(long)
    assert not valid_pattern(long)
    assert valid_subject(long + b"a")
    assert matches(b">", long + b"a")


@given(patterns(), patterns())
def test_overlap_means_that_a_subject_matches_both(one: bytes, other: bytes) -> None:
    literals = (b".".join(tokens) for size in range(1, 7) for tokens in product((b"a", b"b"), repeat=size))
    both = any(matches(one, subject) and matches(other, subject) for subject in literals)
    assert overlap(one, other) is overlap(other, one) is overlap(one.decode(), other.decode()) is both


def test_what_was_taken_before_and_overlaps_is_named_with_its_owner() -> None:
    taken = SubjectOwners()
    assert taken.add("a.b", "one") == []
    assert taken.add("a.c", "two") == []
    assert taken.add("a.b", "three") == [("a.b", "one")]
    assert taken.add("a.*", "four") == [("a.b", "one"), ("a.c", "two")]
    assert taken.add("a.>", "five") == [("a.*", "four"), ("a.b", "one"), ("a.c", "two")]
    assert taken.add("a.b", "six") == [("a.*", "four"), ("a.>", "five"), ("a.b", "one")]
    assert taken.add("b", "seven") == []
