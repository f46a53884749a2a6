"""What is loaded when, while a broker starts: clients must not wait for what they do not need."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli import open_early
from broker.config.broker_options import BrokerOptions
from broker.config.reader import parse
from tests.interop.rawclient import RawClient
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

#: All of ours that may be loaded before the port is open: the command line, and what its options are made of.
BEFORE_THE_PORT = {
    "broker",
    "broker.cli",
    "broker.config",
    *(
        f"broker.config.{name}"
        for name in (
            "broker_options", "catalogue", "flags", "process_options", "reader", "settings", "values",
        )
    ),
    "broker.listening",
    "broker.nats",
    "broker.nats.nats_options",
    "broker.stores",
    "broker.stores.store_options",
    "broker.streaming",
    "broker.streaming.streaming_options",
    "broker.streams",
    "broker.streams.streams_options",
    "stantools.compiled_modules",
    "stantools",
    "stantools.errors",
    "stantools.escaping",
    "stantools.format",
    "stantools.format.crc",
    "stantools.format.quoting",
    "stantools.notation",
    "stantools.options",
    "stantools.secret",
    "stantools.server_options",
    "stantools.store",
    "stantools.store.compactionrules",
    "stantools.store.directory",
    "stantools.store.limits",
    "stantools.store.names",
    "stantools.store.permissions",
}  # fmt: skip
#: Of others, what is large, or not part of Python. isal is small, and the CRC's.
LARGE = {"asyncio", "ssl", "logging", "decimal", "fractions", "json", "tempfile", "encodings.idna", "unittest"}
NOT_TO_SERVE = {"aiohttp", "cryptography", "bcrypt", "nkeys", "nats", "importlib.resources"}
NOT_OURS_TO_SERVE = {
    "broker.config.grammar",
    "broker.config.reload",
    "broker.bus.external",
    "broker.streaming.partitions",
    "broker.stores.file",
    "stantools.inspection",
    "stantools.migration",
}


def ran(script: str, *words: object) -> set[str]:
    """What a script says last, word by word."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    return set(done.stdout.splitlines()[-1].split())


def test_what_is_loaded_before_the_port_is_open() -> None:
    script = """
import sys
import broker.listening
from broker import cli
def opened(host, port):
    print(*sys.modules)
    raise SystemExit
broker.listening.open_sockets = opened
cli.main()
"""
    loaded = ran(script, "-p", "-1", "-m", "-1", "-st", "FILE", "-dir", "nowhere")
    assert {each for each in loaded if each.partition(".")[0] in ("broker", "stantools")} <= BEFORE_THE_PORT
    others = {each.partition(".")[0] for each in loaded} - {"broker", "stantools", "__main__", "isal"}
    # An editable installation has a finder of its own, in a module whose name begins like this.
    foreign = {each for each in others - sys.stdlib_module_names if not each.startswith(("__editable__", "_"))}
    assert not foreign
    assert not loaded & LARGE


def test_what_is_loaded_when_clients_are_served() -> None:
    script = """
import sys, threading
from broker.monitoring import monitoring_server
from broker import cli, log, process
class Ready(process._Process):
    def _banner(self, store):
        print(*sys.modules)
        loaded.set()
        self._end(0)
loaded = threading.Event()
load = monitoring_server._aiohttp
monitoring_server._aiohttp = lambda: loaded.wait() and load()
process._Process = Ready
sys.exit(cli.main())
"""
    loaded = ran(script, "-a", "127.0.0.1", "-p", "-1", "-m", "-1")
    assert not loaded & NOT_TO_SERVE
    assert not loaded & NOT_OURS_TO_SERVE
    assert "broker.process" in loaded


@contextlib.contextmanager
def broker(script: str, folder: Path, *words: object) -> Iterator[Path]:
    """A broker whose start waits somewhere until the file `go`, which is given, exists."""
    go = folder / "go"
    until = f"""
import pathlib, sys, time
def wait():
    while not pathlib.Path({str(go)!r}).exists():
        time.sleep(0.01)
"""
    with subprocess.Popen(
        [sys.executable, "-c", until + script, "-a", "127.0.0.1", *map(str, words)],
        cwd=ROOT, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            yield go
        finally:
            process.kill()


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_clients_can_connect_before_the_broker_is_loaded(tmp_path: Path) -> None:
    script = """
import builtins
from broker import cli
load = builtins.__import__
def waiting(name, *rest, **more):
    if name == "broker.process":
        wait()
    return load(name, *rest, **more)
builtins.__import__ = waiting
sys.exit(cli.main())
"""
    port = free_port()
    with broker(script, tmp_path, "-p", port) as go, connected(port) as early:
        early.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        go.touch()
        said = b""
        while b"PONG\r\n" not in said:
            said += early.recv(1 << 16)
        assert said.startswith(b"INFO ")
        with RawClient(port, "me") as client:
            assert client.stored(b"foo").error == b""


def test_clients_are_served_while_monitoring_is_loaded(tmp_path: Path) -> None:
    script = """
from broker import cli
from broker.monitoring import monitoring_server
load = monitoring_server._aiohttp
def waiting():
    wait()
    return load()
monitoring_server._aiohttp = waiting
sys.exit(cli.main())
"""
    port, http = free_port(), free_port()
    with broker(script, tmp_path, "-p", port, "-m", http) as go:
        connected(port).close()
        with RawClient(port, "me") as client, connected(http) as early:
            early.sendall(b"GET /streaming/clientsz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert client.stored(b"foo").error == b""
            go.touch()
            answer = b""
            while part := early.recv(1 << 16):
                answer += part
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b'"me"' in answer
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/varz", timeout=PATIENCE) as answered:
            assert answered.status == 200


@pytest.mark.parametrize(
    "words",
    [
        ("-ns", "nats://127.0.0.1:4222"),  # nobody listens here
        ("-st", "FILE"),  # without a directory it does not start
        ("-p", "99999"),
    ],
)
def test_no_port_that_would_not_be_served(words: tuple[str, ...]) -> None:
    options = parse(["-a", "127.0.0.1", "-p", "-1", *words])
    assert isinstance(options, BrokerOptions)
    assert open_early(options) == []


def test_a_taken_port_is_left_to_the_server_to_tell() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = parse(["-a", "127.0.0.1", "-p", str(taken.getsockname()[1])])
        assert isinstance(options, BrokerOptions)
        assert open_early(options) == []
