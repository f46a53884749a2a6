"""URLs of servers with passwords of all kinds: what is wrong is said, and the password is not."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.errors import UsageError
from stantools.nats.login import NatsAddress, redacted, without_login

PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=12)


@given(PASSWORDS, st.sampled_from(["nats", "tls", "ws", "wss"]))
def test_any_password_is_taken_or_refused_with_the_way_out(password: str, scheme: str) -> None:
    encoded = NatsAddress.parse(f"{scheme}://user:{quote(password, safe='')}@host:4222")
    assert (encoded.user, encoded.password, encoded.host, encoded.port) == ("user", password, "host", 4222)
    url = f"{scheme}://user:{password}@host:4222"
    assert password not in redacted(url) and "host:4222" in redacted(url)
    try:
        plain = NatsAddress.parse(url)
    except UsageError as problem:
        assert "%2F" in problem.remedy and password not in str(problem) + problem.remedy
        assert "port is not a number" not in problem.message or not set("/?#") & set(password)
    else:
        assert (plain.host, plain.port) == ("host", 4222) and password not in str(plain)


def test_characters_that_end_a_password_are_named() -> None:
    rows: list[str] = ["pa/ss", "pa#ss", "pa?ss", "p@s/s", "/", "p:a/s@s"]
    for password in rows:
        with pytest.raises(UsageError, match=r"contains one of / \? #") as caught:
            NatsAddress.parse(f"nats://user:{password}@host:4222")
            pytest.fail(f"accepted: {password!r}")
        assert "percent-encoded" in caught.value.remedy, password


def test_lists_and_parts_of_them_are_redacted() -> None:
    assert redacted("nats://a:b@h1:1,nats://c:d/e@f@h2") == "nats://[REDACTED]@h1:1,nats://[REDACTED]@h2"
    # Where a list is split at the comma of a password.
    assert redacted("nats://user:se") == "nats://user:[REDACTED]"
    for url in ("nats://h:4222", "h:4222,g:1", "nats://[::1]:4222", "ws://h:80/path"):
        assert redacted(url) == url


def test_urls_without_login() -> None:
    rows: list[tuple[str, str]] = [
        ("nats://u:p@h:1", "nats://h:1"),
        ("nats://a:b:c@[::1]:4", "nats://[::1]:4"),
        ("u@h", "h"),
        ("//u:p@h/x", "//h/x"),
        ("ws://u@h/p@t?x#y", "ws://h/p@t?x#y"),
        *((plain, plain) for plain in ("h:4222", "/p@q", "http://h?x=a@b", "http://[::1")),
    ]
    for url, shown in rows:
        assert without_login(url) == shown, (url, shown)
