"""Options for connecting: URLs, contradictions, contexts, and the command line's options."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from stantools.cli.connection_options import connection_options, or_selected
from stantools.errors import StantoolsError, StoreUnreadableError, UsageError
from stantools.nats.connect_options import DEFAULT_SERVER, ConnectOptions, split_servers
from stantools.nats.context import context_folder, context_names, over, read_context, selected_context
from stantools.nats.login import NatsAddress


def test_urls() -> None:
    rows: list[tuple[str, str]] = [
        ("host", "nats://host:4222"),
        ("host:1", "nats://host:1"),
        ("nats://u:p@host", "nats://host:4222"),
        ("tls://host:4443/", "tls://host:4443"),
        ("nats://[::1]:5", "nats://[::1]:5"),
        ("ws://host/path", "ws://host:80/path"),
        ("wss://host", "wss://host:443"),
    ]
    for text, url in rows:
        assert NatsAddress.parse(text).url == url, (text, url)
        assert NatsAddress.parse(url).url == url, (text, url)


def test_urls_that_are_none() -> None:
    rows: list[str] = [
        "",
        "nats://",
        "http://host",
        "nats://host:port",
        "nats://host:99999",
        "nats://host/path",
        "nats://host?x=1",
        "nats://ho st",
        "nats://u:secret@",
        "nats://[::1",
        "nats://u:secret@host:secret",
        "secret\n:x",
    ]
    for text in rows:
        with pytest.raises(UsageError) as caught:
            NatsAddress.parse(text)
            pytest.fail(f"accepted: {text!r}")
        assert "secret" not in caught.value.message, text


@given(st.text())
def test_any_text_is_a_url_or_a_clear_error(text: str) -> None:
    try:
        address = NatsAddress.parse(text)
    except UsageError:
        return
    assert NatsAddress.parse(address.url).url == address.url


def test_lists_of_servers() -> None:
    assert split_servers(["a, b", "c,", ""]) == ("a", "b", "c")
    assert ConnectOptions().checked().servers == (DEFAULT_SERVER,)
    assert ConnectOptions(servers=("a", "nats://a:4222", "b")).checked().servers == ("nats://a:4222", "nats://b:4222")


def test_credentials_in_urls() -> None:
    both = ConnectOptions(servers=("nats://u:p%40@a", "nats://u:p%40@b", "c")).checked()
    assert (both.user, both.password, both.servers[0]) == ("u", "p@", "nats://a:4222")
    assert ConnectOptions(servers=("nats://secret@a",)).checked().token == "secret"
    given_wins = ConnectOptions(servers=("nats://u:p@a",), user="me", password="x").checked()
    assert (given_wins.user, given_wins.password) == ("me", "x")


def test_contradictions() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"servers": ("nats://u:p@a", "nats://v:p@b")}, "different users"),
        ({"servers": ("ws://a", "nats://b")}, "cannot be mixed"),
        ({"servers": ("embedded", "a")}, "cannot be one of several"),
        ({"user": "u"}, "no password"),
        ({"password": "p"}, "no user"),
        ({"user": "u", "password": "p", "token": "t"}, "user and password and a token exclude"),
        ({"nkey": Path("n"), "creds": Path("c")}, "exclude each other"),
        ({"tls_cert": Path("c")}, "the key of the client certificate is missing"),
        ({"tls_key": Path("c")}, "the client certificate is missing"),
        ({"tls_insecure": True, "tls_ca": Path("c")}, "contradicts the options for that check"),
        ({"domain": "a.b"}, "JetStream domain"),
        ({"domain": "d", "api_prefix": "p"}, "exclude each other"),
        ({"api_prefix": "a..b"}, "not the prefix of a subject"),
        ({"inbox_prefix": "a.>"}, "not the prefix of a subject"),
        ({"inbox_prefix": "a b"}, "not the prefix of a subject"),
        ({"timeout": 0}, "makes no sense"),
    ]
    for options, said in rows:
        with pytest.raises(UsageError, match=said) as caught:
            ConnectOptions(**options).checked()
            pytest.fail(f"accepted: {(options, said)!r}")
        assert caught.value.remedy, (options, said)


def test_prefixes() -> None:
    assert ConnectOptions().prefix == "$JS.API"
    assert ConnectOptions(domain="hub").prefix == "$JS.hub.API"
    assert ConnectOptions(api_prefix="from.acme").prefix == "from.acme"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with contexts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NATS_URL", raising=False)
    contexts = tmp_path / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "prod.json").write_text(
        json.dumps(
            {
                "description": "the real one",
                "url": "nats://a:1,nats://b:2",
                "user": "me",
                "password": "secret",
                "creds": "",
                "ca": "~/ca.pem",
                "jetstream_domain": "hub",
                "inbox_prefix": "in",
                "tls_first": True,
                "color_scheme": "",
            }
        )
    )
    (contexts / "plain.json").write_text('{"url": "nats://plain", "token": "t"}')
    (contexts / "list.json").write_text("[]")
    (contexts / "broken.json").write_text("{")
    (contexts / "number.json").write_text('{"url": 5}')
    (contexts / "lookup.json").write_text('{"url": "a", "nsc": "nsc://o/a/u"}')
    (tmp_path / "nats" / "context.txt").write_text("plain\n")
    return tmp_path / "nats"


def test_reads_contexts(folder: Path) -> None:
    assert context_folder() == folder
    assert context_names(folder) == ["broken", "list", "lookup", "number", "plain", "prod"]
    assert selected_context(folder) == "plain"
    found = read_context("prod", folder)
    assert found == ConnectOptions(
        servers=("nats://a:1", "nats://b:2"),
        user="me",
        password="secret",
        tls_ca=Path.home() / "ca.pem",
        domain="hub",
        inbox_prefix="in",
        tls_first=True,
        context="prod",
    )
    assert read_context(str(folder / "context" / "plain.json"), folder).token == "t"


def test_nothing_is_selected(folder: Path, tmp_path: Path) -> None:
    (folder / "context.txt").write_text("gone")
    assert selected_context(folder) is None
    (folder / "context.txt").unlink()
    assert selected_context(folder) is None
    assert context_names(tmp_path / "nowhere") == []
    assert context_folder({}) == Path.home() / ".config" / "nats"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("nothing", UsageError, "there is no context nothing; there are broken, list"),
        ("../prod", UsageError, "not the name of a context"),
        ("", UsageError, "not the name of a context"),
        ("a\0b", UsageError, "not the name of a context"),
        ("list", StoreUnreadableError, "is not a context: expected a JSON object"),
        ("broken", StoreUnreadableError, "is not a context: expected a JSON object"),
        ("number", StoreUnreadableError, "url is not a string"),
        ("lookup", UsageError, "credentials looked up by nsc"),
        ("missing.json", StoreUnreadableError, "cannot be read"),
    ],
)
def test_contexts_that_are_none(folder: Path, name: str, kind: type[StantoolsError], said: str) -> None:
    with pytest.raises(kind, match=said):
        read_context(name, folder)


def test_what_is_given_wins_over_the_context(folder: Path) -> None:
    base = read_context("prod", folder)
    assert over(ConnectOptions(), base) == base
    other = over(ConnectOptions(servers=("x",), token="t", api_prefix="p", timeout=9), base)
    assert (other.servers, other.token, other.user, other.password) == (("x",), "t", None, None)
    assert (other.api_prefix, other.domain, other.timeout, other.inbox_prefix) == ("p", None, 9, "in")
    assert over(ConnectOptions(tls_insecure=True), base).tls_ca is None


class Call:
    """Runs a small command that has the options."""

    def __init__(self) -> None:
        self.got: ConnectOptions | None = None

    def __call__(self, *arguments: str, selected: bool = False, **environment: str) -> ConnectOptions:
        @click.command()
        @connection_options
        def command(connect_options: ConnectOptions) -> None:
            self.got = or_selected(connect_options) if selected else connect_options

        result = CliRunner().invoke(command, arguments, env=environment)
        if isinstance(result.exception, StantoolsError):
            raise result.exception
        assert result.exit_code == 0, result.output
        assert self.got is not None
        return self.got


@pytest.fixture
def call(folder: Path) -> Iterator[Call]:
    levels = {name: logging.getLogger(name).level for name in ("asyncio", "nats")}
    yield Call()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_command_line(call: Call, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from file\n")
    assert call() == ConnectOptions()
    assert call("--server", "a,b", "--server", "c").servers == ("nats://a:4222", "nats://b:4222", "nats://c:4222")
    assert call(NATS_URL="x,y").servers == ("nats://x:4222", "nats://y:4222")
    assert call("--server", "a", NATS_URL="x").servers == ("nats://a:4222",)
    assert call("--server", "embedded").embedded
    login = call("--user", "u", "--password-env", "P", P="pass word")
    assert (login.user, login.password) == ("u", "pass word")
    assert call("--user", "u", "--password-file", str(secret)).password == "from file"
    assert call("--token-file", str(secret)).token == "from file"
    assert call("--js-domain", "hub", "--inbox-prefix", "in").prefix == "$JS.hub.API"
    assert call("--js-api-prefix", "own").prefix == "own"
    assert call("--timeout", "0.5").timeout == 0.5


def test_command_line_with_contexts(call: Call) -> None:
    named = call("--context", "plain")
    assert (named.servers, named.token, named.context) == (("nats://plain:4222",), "t", "plain")
    # What happens to be set in the environment does not turn aside who names a context.
    assert call("--context", "plain", NATS_URL="x").servers == ("nats://plain:4222",)
    assert call("--context", "plain", "--server", "x").servers == ("nats://x:4222",)
    assert call(selected=True).servers == ("nats://plain:4222",)
    assert call("--server", "x", selected=True).token is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--password-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
        (["--token-env", "A", "--token-file", "b"], "--token-env and --token-file exclude each other"),
        (["--password-file", "/no/such/file"], "cannot be read"),
        (["--user", "u"], "no password"),
        (["--tls-cert", "c"], "is missing"),
        (["--server", "http://x"], "no servers for 'http'"),
        (["--context", "none"], "there is no context none"),
    ],
)
def test_wrong_command_lines(call: Call, arguments: list[str], said: str) -> None:
    with pytest.raises(StantoolsError, match=said):
        call(*arguments)


def test_a_file_without_text(call: Call, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(StoreUnreadableError, match="holds no text"):
        call("--token-file", str(binary))
