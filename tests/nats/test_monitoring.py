"""Asking monitoring over HTTP, and everything that may be at the other end instead."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stantools.errors import StantoolsError, UsageError
from stantools.nats.monitoring import Address, Endpoint, GoneError, MissingError, MonitorError, TooLargeError
from tests.servers import free_port
from tests.tui.monitored import MonitoredServer


@pytest.fixture
def stub() -> Iterator[MonitoredServer]:
    with MonitoredServer() as server:
        yield server


def endpoint(url: str, **options: float) -> Endpoint:
    return Endpoint(Address.parse(url), **options)  # type: ignore[arg-type]


def problem_at(url: str, path: str = "/streaming/serverz", **options: float) -> MonitorError:
    with pytest.raises(MonitorError) as caught:
        endpoint(url, **options).ask(path)
    assert caught.value.remedy
    return caught.value


def test_urls() -> None:
    rows: list[tuple[str, str]] = [
        ("localhost", "http://localhost:8222"),
        ("localhost:9000", "http://localhost:9000"),
        ("http://host", "http://host:80"),
        ("https://host", "https://host:443"),
        ("http://host:8222/", "http://host:8222"),
        ("http://host:8222/streaming", "http://host:8222"),
        ("http://host:8222/streaming/channelsz?subs=1", "http://host:8222"),
        ("http://host:8222/streaming/ui", "http://host:8222"),
        ("http://proxy/stan/a/", "http://proxy:80/stan/a"),
        ("http://[::1]:8222", "http://[::1]:8222"),
        ("http://me:secret@host:8222", "http://host:8222"),
        (" http://host:1 ", "http://host:1"),
    ]
    for text, shown in rows:
        assert Address.parse(text).shown == shown, (text, shown)


def test_what_is_no_url() -> None:
    rows: list[str] = [
        "nats://host:4222",
        "ftp://host",
        "http://",
        "http://a b",
        "http://host:99999",
        "http://[::1",
        "http://a..b",
    ]
    for text in rows:
        with pytest.raises(UsageError) as caught:
            Address.parse(text.replace("://", "://me:secret@") if "@" not in text else text)
            pytest.fail(f"accepted: {text!r}")
        assert "secret" not in caught.value.message, text
        assert caught.value.remedy, text


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for prefix in ("", "http://", "https://u:p@"):
        try:
            address = Address.parse(prefix + text)
        except UsageError:
            continue
        assert address.host
        assert "p@" not in repr(address) or "p@" in text


def test_a_document(stub: MonitoredServer) -> None:
    asked = endpoint(stub.url)
    assert asked.ask("/streaming/serverz")["cluster_id"] == "test-cluster"
    assert asked.ask("/streaming/channelsz", subs=1, offset=0, limit=2)["count"] == 0
    assert stub.asked == ["/streaming/serverz", "/streaming/channelsz?subs=1&offset=0&limit=2"]


def test_a_login_is_sent_and_never_shown(stub: MonitoredServer) -> None:
    url = stub.url.replace("://", "://me:se%40cret@")
    asked = endpoint(url)
    asked.ask("/varz")
    assert stub.headers["Authorization"] == "Basic bWU6c2VAY3JldA=="
    stub.instead["*"] = 401, "text/plain", b"no\n"
    problem = problem_at(url)
    assert "cret" not in f"{problem.message}{problem.remedy}{asked.address!r}"
    assert "refuses access" in problem.message


def test_a_path_in_front(stub: MonitoredServer) -> None:
    stub.instead["/proxy/varz"] = 200, "application/json", b'{"a": 1}'
    assert endpoint(f"{stub.url}/proxy").ask("/varz") == {"a": 1}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((404, "text/plain", b"404 page not found\n"), "has no /streaming/serverz"),
        ((500, "text/plain", b"Error getting information about server: no\x1b[31m\n"), "HTTP 500: Error getting"),
        ((503, "text/html", b"<html>busy</html>"), "HTTP 503"),
        ((403, "text/html", b""), "refuses access"),
        ((302, "text/plain", b""), "redirects to http://other/x"),
        ((200, "text/html", b"\n<!doctype html><html>"), "is a web page"),
        ((200, "application/json", b'{"cluster_id": '), "is not JSON"),
        ((200, "application/json", b"\xff\xfe\x00\x01"), "is not JSON"),
        ((200, "application/json", b""), "is not JSON"),
        ((200, "application/json", b"[" * 100_000), "is not JSON"),
        ((200, "application/json", b"[1, 2]"), "but not an object"),
        ((200, "application/json", b"null"), "but not an object"),
    ],
)
def test_bad_answers(stub: MonitoredServer, reply: tuple[int, str, bytes], said: str) -> None:
    stub.more_headers["Location"] = "http://me:secret@other/x"
    stub.instead["*"] = reply
    problem = problem_at(stub.url)
    assert said in problem.message
    assert problem.message.isprintable()
    assert "secret" not in problem.message
    assert isinstance(problem, MissingError) == (reply[0] == 404)
    # The next question is answered as if nothing had been.
    asked = endpoint(stub.url)
    with pytest.raises(MonitorError):
        asked.ask("/varz")
    stub.instead.clear()
    assert asked.ask("/varz")["version"] == "2.9.24"


def test_a_huge_answer(stub: MonitoredServer) -> None:
    stub.instead["*"] = 200, "application/json", b'{"a": "' + b"x" * 100_000 + b'"}'
    assert isinstance(problem_at(stub.url, largest=1 << 16), TooLargeError)


def test_nobody_listens() -> None:
    problem = problem_at(f"http://127.0.0.1:{free_port()}")
    assert isinstance(problem, GoneError)
    assert "nothing is listening" in problem.message


def test_no_such_host() -> None:
    assert "unknown host" in problem_at("http://no-such-host.invalid:8222").message


def test_no_tls_there(stub: MonitoredServer) -> None:
    assert "no TLS there" in problem_at(stub.url.replace("http:", "https:")).message


@pytest.fixture
def stranger() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Listens and does with each connection what it is told; returns the URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def begin(act: Callable[[socket.socket], None]) -> str:
        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                    connections.append(connection)
                    act(connection)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield begin
    listening.close()
    for each in connections:
        each.close()


def test_the_port_of_clients(stranger: Callable[..., str]) -> None:
    url = stranger(lambda connection: connection.sendall(b'INFO {"server_id":"N","version":"2.9.24"} \r\n'))
    assert "the port for NATS clients" in problem_at(url).message


def test_no_http(stranger: Callable[..., str]) -> None:
    assert (
        "does not speak HTTP" in problem_at(stranger(lambda connection: connection.sendall(b"220 hello\r\n"))).message
    )


def test_nothing_is_said(stranger: Callable[..., str]) -> None:
    problem = problem_at(stranger(lambda connection: None), silence=0.2)
    assert isinstance(problem, GoneError)
    assert "did not answer within 0.2 s" in problem.message


def test_an_answer_that_drips(stranger: Callable[..., str]) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(200):
            connection.sendall(b" ")
            threading.Event().wait(0.02)

    assert "took more than" in problem_at(stranger(drip), patience=0.3).message


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_a_connection_that_breaks(stranger: Callable[..., str], said: bytes) -> None:
    def hang_up(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(said)
        connection.close()

    problem = problem_at(stranger(hang_up))
    assert isinstance(problem, GoneError)
    assert "the connection broke" in problem.message


def test_a_kept_connection_that_the_server_closed(stranger: Callable[..., str]) -> None:
    """Servers close connections that are not used for a while: that is no problem."""

    def answer_once(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}')
        connection.close()

    asked = endpoint(stranger(answer_once))
    for _ in range(3):
        assert asked.ask("/varz") == {"a": 1}


def test_problems_are_ours() -> None:
    assert issubclass(MonitorError, StantoolsError)
