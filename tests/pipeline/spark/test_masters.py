"""What a master URL says, and whether anybody listens there."""

from __future__ import annotations

import socket
import time

import pytest

from stantools.errors import ExitCode, UsageError
from stantools.pipeline.spark.launch import Master, MasterUnreachableError, check_reachable, parse_master


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("local", Master("local", "local")),
        ("local[*]", Master("local[*]", "local")),
        ("local[4,2]", Master("local[4,2]", "local")),
        ("local-cluster[2,1,1024]", Master("local-cluster[2,1,1024]", "local-cluster")),
        ("yarn", Master("yarn", "yarn")),
        ("spark://a:7077", Master("spark://a:7077", "spark", (("a", 7077),))),
        ("spark://a:1,b:2", Master("spark://a:1,b:2", "spark", (("a", 1), ("b", 2)))),
        ("spark://[::1]:7077", Master("spark://[::1]:7077", "spark", (("::1", 7077),))),
        ("k8s://https://h:6443", Master("k8s://https://h:6443", "k8s", (("h", 6443),))),
        ("k8s://h", Master("k8s://h", "k8s", (("h", 443),))),
        ("sc://h", Master("sc://h", "sc", (("h", 15002),))),
        ("sc://h:9/;token=x", Master("sc://h:9/;token=x", "sc", (("h", 9),))),
    ],
)
def test_urls_are_taken_apart(url: str, expected: Master) -> None:
    assert parse_master(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("", "lokal[2]", "local[0]", "local[]", "spark://", "spark://host", "spark://h:0", "spark://h:99999"),
        *("h:7077", "http://h:7077", "k8s://", "yarn-client", "sc://", "mesos://h:5050", "spark://h:7077,"),
    ],
)
def test_what_is_no_master_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_master(url)
    assert "spark://HOST:PORT" in refused.value.remedy
    if url == "lokal[2]":
        assert "did you mean local[2]?" in refused.value.remedy


def test_what_stays_on_this_machine() -> None:
    here = ("local", "local-cluster[1,1,512]", "spark://127.0.0.1:7077", "spark://localhost:1,[::1]:2")
    assert all(parse_master(url).loopback for url in here)
    assert not any(parse_master(url).loopback for url in ("yarn", "spark://10.0.0.1:1", "spark://127.0.0.1:1,h:2"))


def test_an_address_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = server.getsockname()[1], other.getsockname()[1]
        other.close()
        check_reachable(parse_master(f"spark://127.0.0.1:{closed},127.0.0.1:{port}"))
        with pytest.raises(MasterUnreachableError, match=f"127.0.0.1:{closed}: Connection refused") as refused:
            check_reachable(parse_master(f"spark://127.0.0.1:{closed}"))
    assert refused.value.exit_code == ExitCode.UNREACHABLE
    assert "its default port is 7077" in refused.value.remedy
    for url, remedy in ((f"sc://127.0.0.1:{closed}", "start-connect-server"), (f"k8s://127.0.0.1:{closed}", "kubectl")):
        with pytest.raises(MasterUnreachableError) as refused:
            check_reachable(parse_master(url))
        assert remedy in refused.value.remedy
    check_reachable(parse_master("local[2]"))


def test_an_address_that_never_answers_is_given_up_soon() -> None:
    # A full queue of connections that nobody takes: the next one gets no answer.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        begin = time.monotonic()
        with pytest.raises(MasterUnreachableError, match="timed out"):
            check_reachable(parse_master(f"spark://127.0.0.1:{address[1]}"), seconds=0.3)
        assert time.monotonic() - begin < 5
        for each in waiting:
            each.close()
