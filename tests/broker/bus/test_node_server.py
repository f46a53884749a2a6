"""The nats-server of a node: which one, and what becomes of one that does not run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.bus import nodeserver
from broker.bus.nodeserver import NodeServer
from broker.stores.interface import InUseError, OriginalStoreError, StorageError
from broker.stores.jetstream import node
from broker.stores.jetstream.node import NodeDirectory
from stantools.errors import StantoolsError
from tests import servers


def program(folder: Path, script: str) -> Path:
    path = folder / "nats-server"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


#: Says its version, and runs so well that clients could connect, for a moment.
SHORT = """
[ "$1" = --version ] && echo nats-server: v2.12.8 && exit
echo x >>{0}/starts
echo '{{"nats": ["nats://127.0.0.1:4222"]}}' >{0}/data/nats-server/nats-server_$$.ports
echo "[1] [INF] Server is ready" >>{0}/data/nats-server/server.log
sleep 0.2
echo "[1] [FTL] the disk is full" >>{0}/data/nats-server/server.log
"""


async def run(folder: Path) -> str:
    """Returns why a node gives up."""

    loop = asyncio.get_running_loop()
    directory = NodeDirectory(folder / "data", "c", folder / "raft")
    failed: asyncio.Future[str] = loop.create_future()
    try:
        server = NodeServer(
            {"host": "127.0.0.1", "port": 4222}, directory, await directory.open("a", str), failed.set_result
        )
        try:
            assert await server.start(loop.create_future()) == 4222
            return await asyncio.wait_for(failed, 60)
        finally:
            await server.stop()
    finally:
        directory.close()


async def test_which_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StantoolsError, match=r"there is no nats-server to start.*install one.*--nats_server"):
        await run(tmp_path)
    if servers.OLDEST in servers.available():
        (tmp_path / "nats-server").symlink_to(servers.binary(servers.OLDEST))
        with pytest.raises(StantoolsError, match=r"is version 2\.9\.10, and has to be 2\.10 or newer: install one"):
            await run(tmp_path)
        (tmp_path / "nats-server").unlink()
    program(tmp_path, "[ $1 = --version ] && echo nats-server: v2.12.8 && exit; echo unknown field >&2; exit 1")
    with pytest.raises(StantoolsError, match="ended at once: unknown field"):
        await run(tmp_path)


async def test_one_that_dies_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = program(tmp_path, SHORT.format(tmp_path))
    monkeypatch.setattr(nodeserver, "find_server", lambda _: binary)
    monkeypatch.setattr(nodeserver, "_PAUSES", (0.0, 0.01))
    assert await run(tmp_path) == "The NATS server of this node does not keep running: the disk is full"
    assert (tmp_path / "starts").read_text() == "x\n" * 3


async def open_directory(path: Path, node_id: str = "", cluster_id: str = "c") -> str:
    directory = NodeDirectory(path, cluster_id, path / "raft")
    try:
        return await directory.open(node_id, lambda: "by-chance")
    finally:
        directory.close()


async def test_directories(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await open_directory(tmp_path / "a") == "by-chance"
    # What was stored counts, as in the original.
    assert await open_directory(tmp_path / "a", "b") == "by-chance"
    assert 'node_id "b" does not count' in caplog.text
    with pytest.raises(StorageError, match='cluster ID "other" does not match recovered value of "c"'):
        await open_directory(tmp_path / "a", cluster_id="other")
    for name in ("server.dat", "clients.dat", "orders/msgs.1.dat", "raft/c/raft.log"):
        theirs = tmp_path / name.replace("/", "-") / name
        theirs.parent.mkdir(parents=True)
        theirs.write_bytes(b"theirs")
        with pytest.raises(OriginalStoreError, match="belongs to another server's store"):
            await open_directory(tmp_path / name.replace("/", "-"))
    monkeypatch.setattr(node, "_PATIENCE", 0.2)
    directory = NodeDirectory(tmp_path / "a", "c", tmp_path)
    monkeypatch.setattr(node, "lock_directory", refuse)
    with pytest.raises(StorageError, match="another broker is using this store"):
        await directory.open("", str)
    assert "waiting for the broker" in caplog.text


def refuse(path: Path) -> Path:
    raise InUseError(f"{path}: another broker is using this store")
