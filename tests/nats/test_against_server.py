"""The examples of the other tests, said to a real nats-server: it accepts, refuses and answers as we do."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.nats import test_operations, test_parsing

#: Refused by us only: a CR within a word.
STRICTER = (b"PUB foo b\rar 2\r\nhi\r\n",)
#: Ends the connection there, which is not for the parser to say.
ENDS = (b"-ERR 'foo'\r\n",)
#: Not refused before more bytes come, or not at all: blanks are not counted there.
LATER = (b"SUB " + b" " * 5000,)

GOOD = [*test_parsing.ACCEPTED, *(data for data in test_operations.ACCEPTED if data not in ENDS)]
BAD = [
    *(data for data in test_parsing.MALFORMED if data not in STRICTER),
    *(data for data in test_operations.REFUSED if data not in LATER),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.NatsServer]:
    if servers.OLDEST not in servers.available():
        pytest.skip(f"nats-server {servers.OLDEST} is not here")
    with servers.NatsServer(Path(tmp_path_factory.mktemp("nats")), servers.OLDEST, jetstream=False) as server:
        yield server


def said(server: servers.NatsServer, data: bytes) -> tuple[bytes, bool]:
    """Returns what the server answers to it, and whether it closes the connection instead of answering a PING."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        received = b""
        while not received.endswith(b"\r\n"):
            received += connection.recv(65536)
        connection.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nPING\r\n')
        assert connection.recv(65536) == b"PONG\r\n"
        answer = b""
        try:
            # The end is marked with a header that no example has.
            connection.sendall(data + b"SUB the.end e\r\nPUB the.end 3\r\nend\r\n")
            while not answer.endswith(b"MSG the.end e 3\r\nend\r\n"):
                received = connection.recv(65536)
                if not received:
                    return answer, True
                answer += received
        except ConnectionError:
            return answer, True
        return answer.removesuffix(b"MSG the.end e 3\r\nend\r\n"), False


def test_accepted(server: servers.NatsServer) -> None:
    for data in GOOD:
        assert not said(server, data)[1], data


def test_refused(server: servers.NatsServer) -> None:
    for data in BAD:
        answer, closed = said(server, data)
        assert closed, data
        expected = test_operations.REFUSED.get(data)
        if expected is None:
            continue
        # A connection that is closed with unread bytes may lose its last words.
        assert answer in ((f"-ERR '{expected[0]}'\r\n".encode(), b"") if expected[0] else (b"",)), data
        said_in_log = re.sub(r"(maximum control line exceeded|ERROR).*", r"\1", expected[1])
        deadline = time.monotonic() + 60
        while said_in_log not in server.text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert said_in_log in server.text(), data
